"""Time of decoding as the output grows, and with one long source among short ones.

    python benchmarks/decode_length.py
    python benchmarks/decode_length.py --json decode_length.json

Models of random weights write outputs of exactly the length that is asked for. Of each
cell the fastest of several runs counts, those of a model and search in turn, so that
other work on the machine disturbs all alike. Doubling the length should double the
time, and the long source together with the short ones should take as long as both
apart: in batches as `Translator.translate` makes them, and, to compare, in one batch.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import keras
import numpy as np

from keras_seq2seq.batches import inference_batches, pad_rows, round_up
from keras_seq2seq.config import DecodingConfig
from keras_seq2seq.decoding import generate
from keras_seq2seq.models import RecurrentSeq2Seq, TransformerSeq2Seq
from keras_seq2seq.tokenizers import END_ID

FIRST_WORD = END_ID + 1
QUICK = {
    "lengths": [4, 8],
    "batch": 2,
    "beams": [1, 2],
    "source_length": 4,
    "short": 3,
    "short_length": 3,
    "long_length": 8,
    "batch_tokens": [24],
    "vocabulary": 20,
    "dim": 8,
    "heads": 2,
    "layers": 1,
    "units": 8,
    "recurrent_layers": 1,
    "repeats": 1,
}


def models_of(arguments):
    """The models by name, built."""
    size = arguments.vocabulary
    keras.utils.set_random_seed(0)
    models = {
        "transformer": TransformerSeq2Seq(
            size,
            size,
            dim=arguments.dim,
            num_heads=arguments.heads,
            feedforward_dim=4 * arguments.dim,
            num_encoder_layers=arguments.layers,
            num_decoder_layers=arguments.layers,
            max_positions=max(1024, *arguments.lengths, arguments.long_length),
        ),
        "gru": RecurrentSeq2Seq(
            size,
            size,
            cell="gru",
            units=arguments.units,
            embedding_dim=arguments.dim,
            num_encoder_layers=arguments.recurrent_layers,
            num_decoder_layers=arguments.recurrent_layers,
        ),
    }
    ids = np.full((1, 2), FIRST_WORD, "int32")
    for model in models.values():
        model({"source_ids": ids, "target_ids": ids})
    return {name: models[name] for name in arguments.models}


def sources_of(lengths, arguments):
    """Sources of random words, each of which ends with END."""
    generator = np.random.default_rng(0)
    return [
        [*generator.integers(FIRST_WORD, arguments.vocabulary, size=length - 1), END_ID]
        for length in lengths
    ]


def decoder(model, beams, sources, lengths, batches):
    """A function that decodes sources, each to its length, in the given batches."""
    calls = []
    for rows, height, width in batches:
        # As `Translator`: rows that only fill the batch end after one token.
        limits = np.ones((height,), "int32")
        limits[: len(rows)] = [lengths[row] for row in rows]
        ids = pad_rows([sources[row] for row in rows], height, width)
        calls.append((ids, limits))

    def decode():
        for ids, limits in calls:
            result = generate(
                model,
                ids,
                max_length=round_up(int(limits.max()), most=model.max_positions),
                num_beams=beams,
                length_limits=limits,
                min_lengths=limits,  # END never comes
            )
            if not np.array_equal(result.lengths[:, 0], limits):
                raise SystemExit(f"{result.lengths} tokens in place of {limits}")

    return decode


def fastest(functions, repeats):
    """Milliseconds of the fastest run of each function, taken in turn."""
    for function in functions:
        function()  # compiles
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[index] = min(best[index], 1000 * (time.perf_counter() - start))
    return best


def length_rows(models, arguments):
    """One row for each model, search and length, with the ratio to the one before."""
    count = arguments.batch
    sources = sources_of([arguments.source_length] * count, arguments)
    batch = (range(count), count, arguments.source_length)
    rows = []
    for name, model in models.items():
        for beams in arguments.beams:
            functions = [
                decoder(model, beams, sources, [length] * count, [batch])
                for length in arguments.lengths
            ]
            times = fastest(functions, arguments.repeats)
            last = None
            for length, taken in zip(arguments.lengths, times, strict=True):
                rows.append(
                    {
                        "model": name,
                        "beams": beams,
                        "length": length,
                        "ms": taken,
                        "ms_per_step": taken / length,
                        "ratio": last and taken / last,
                    }
                )
                last = taken
    return rows


def mixed_rows(models, arguments):
    """One row for each model, search and way of batching, beside the sum of parts."""
    lengths = [arguments.short_length] * arguments.short + [arguments.long_length]
    sources = sources_of(lengths, arguments)
    everyone = range(len(sources))
    one_batch = (everyone, len(sources), arguments.long_length)
    rows = []
    for name, model in models.items():

        def public(chosen, batch_tokens, model=model):
            chosen = list(chosen)
            batches = inference_batches(
                [lengths[row] for row in chosen],
                batch_tokens=batch_tokens,
                max_width=model.max_positions,
            )
            return [([chosen[i] for i in b.rows], b.height, b.width) for b in batches]

        most = max(arguments.batch_tokens)
        ways = {
            "short alone": public(everyone[:-1], most),
            "long alone": public(everyone[-1:], most),
        }
        for tokens in arguments.batch_tokens:
            ways[f"together, batch_tokens {tokens}"] = public(everyone, tokens)
        ways["together, one batch"] = [one_batch]
        for beams in arguments.beams:
            functions = [
                decoder(model, beams, sources, lengths, batches)
                for batches in ways.values()
            ]
            times = fastest(functions, arguments.repeats)
            parts = sum(times[:2])
            for (way, batches), taken in zip(ways.items(), times, strict=True):
                rows.append(
                    {
                        "model": name,
                        "beams": beams,
                        "way": way,
                        "batches": [[height, width] for _, height, width in batches],
                        "ms": taken,
                        "ratio": taken / parts,
                    }
                )
    return rows


def length_table(rows):
    """The rows of one question as text."""
    lines = ["model        beams  length        ms  ms/step   ratio"]
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(
            f"{row['model']:<12} {row['beams']:5d} {row['length']:7d} "
            f"{row['ms']:9.1f} {row['ms_per_step']:8.2f} {ratio:>7}"
        )
    return "\n".join(lines)


def mixed_table(rows):
    """The rows of the other; the ratio is to the sum of both parts alone."""
    lines = [f"model        beams  {'way':<28}        ms   ratio  batches"]
    for row in rows:
        batches = " + ".join(f"{height}x{width}" for height, width in row["batches"])
        lines.append(
            f"{row['model']:<12} {row['beams']:5d}  {row['way']:<28} "
            f"{row['ms']:9.1f} {row['ratio']:7.2f}  {batches}"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    names = ["transformer", "gru"]
    add("--models", nargs="+", choices=names, default=names)
    add("--beams", type=int, nargs="+", default=[1, 4], help="1 is greedy search")
    add("--lengths", type=int, nargs="+", default=[32, 64, 128, 256])
    add("--batch", type=int, default=8, help="sources decoded to each length")
    add("--source-length", type=int, default=24, help="their tokens")
    add("--short", type=int, default=31, help="short sources beside the long one")
    add("--short-length", type=int, default=10, help="tokens read, and written")
    add("--long-length", type=int, default=100, help="tokens read, and written")
    add(
        "--batch-tokens",
        type=int,
        nargs="+",
        default=[DecodingConfig().batch_tokens, 1024],
        help="of the batches (default: that of [decoding], and 1024)",
    )
    add("--vocabulary", type=int, default=4000)
    add("--dim", type=int, default=256)
    add("--heads", type=int, default=4)
    add("--layers", type=int, default=4, help="of the Transformer, on each side")
    add("--units", type=int, default=320, help="of the GRU, in each direction")
    add("--recurrent-layers", type=int, default=2, help="of the GRU, on each side")
    add("--repeats", type=int, default=3)
    add("--quick", action="store_true", help="tiny sizes, to see whether it runs")
    add("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update(QUICK)
    models = models_of(arguments)
    parameters = {name: model.count_params() for name, model in models.items()}
    for name, count in parameters.items():
        print(f"{name}: {count:,} parameters")
    by_length = length_rows(models, arguments)
    print(f"\n{length_table(by_length)}\n", flush=True)
    mixed = mixed_rows(models, arguments)
    print(mixed_table(mixed))
    if arguments.json:
        settings = {
            key: value for key, value in vars(arguments).items() if key != "json"
        }
        report = {
            "backend": keras.backend.backend(),
            "machine": platform.processor() or platform.machine(),
            "settings": settings,
            "parameters": parameters,
            "lengths": by_length,
            "mixed": mixed,
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
