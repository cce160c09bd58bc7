"""The systems that decode.py measures: each loads the same weights in its own process.

`serve` is a worker: it reads the folder that `model_files.prepare` wrote, and answers
one line of JSON for each line on standard input.
"""

import importlib.metadata
import json
import os
import sys
import time
import traceback

import numpy as np

PAD, START, END = 0, 2, 3
# The rule that all systems share: a hypothesis ranks by its mean log-probability, and a
# search stops when as many have ended as there are beams.
RANKING = {"length_penalty": 1.0, "length_penalty_base": 0.0, "stop": "count"}
PACKAGES = (
    "keras",
    "tensorflow",
    "jax",
    "ai-edge-litert",
    "ctranslate2",
    "torch",
    "transformers",
)


class MissingError(Exception):
    """A system that cannot take part; the message says why."""


def token_names(size):
    """Names for ids, since CTranslate2 takes strings."""
    return ["<pad>", "<unk>", "<s>", "</s>", *(f"t{index}" for index in range(4, size))]


def beams_of(settings):
    return sorted({cell["beams"] for cell in settings["cells"].values()})


# The systems. Of each, `ready` turns a batch into what `decode` takes, outside the time
# that counts, and `rows` reads the tokens that `decode` found, END and PAD aside.


def set_tensorflow_threads(threads):
    """Fixes the threads of TensorFlow, if Keras runs on it."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)


class Ours:
    """`generate` on the backend in use."""

    def __init__(self, name, folder, settings):
        import keras

        import keras_seq2seq.models  # noqa: F401  (registers the class to load)

        set_tensorflow_threads(settings["threads"])
        self.model = keras.saving.load_model(folder / "model.keras", compile=False)
        self.jit_compile = name == "xla"
        self.settings = settings

    def ready(self, batch, cell):
        from keras_seq2seq.batches import pad_rows, round_up

        sources, limit = batch["sources"], batch["limit"]
        options = {"num_beams": cell["beams"], **RANKING}
        if not self.settings["run"]:
            options |= {
                "max_length": limit,
                "min_length": limit - 1,
                "banned_ids": (),
            }
            return np.asarray(sources, "int32"), options
        # As a `Translator`: few shapes, and rows that only fill the batch end at once.
        limits = np.ones((cell["batch"],), "int32")
        limits[: len(sources)] = limit
        options |= {"max_length": self.settings["max_length"], "length_limits": limits}
        width = round_up(max(map(len, sources)))
        return pad_rows(sources, cell["batch"], width), options

    def decode(self, ready):
        from keras_seq2seq.decoding import generate

        ids, options = ready
        return generate(self.model, ids, jit_compile=self.jit_compile, **options)

    def rows(self, found, batch):
        return [_real(row[0]) for row in found.ids[: len(batch["sources"])]]


class LiteRT:
    """The search as a `.tflite` file."""

    def __init__(self, name, folder, settings):
        from keras_seq2seq.export.litert_runtime import LiteRTDecoder

        self.decoders = {}
        for beams in beams_of(settings):
            file, threads = folder / f"{name}_{beams}.tflite", settings["threads"]
            # All threads for one source, or one for each of several parts.
            self.decoders[beams] = {
                False: LiteRTDecoder(file, num_threads=threads),
                True: LiteRTDecoder(file, num_workers=threads),
            }

    def ready(self, batch, cell):
        from keras_seq2seq.batches import pad_rows

        sources = batch["sources"]
        lengths = np.asarray([len(row) for row in sources], "int32")
        ids = pad_rows(sources, len(sources), int(lengths.max()))
        decoder = self.decoders[cell["beams"]][len(sources) > 1]
        return decoder, {"ids": ids, "lengths": lengths}

    def decode(self, ready):
        decoder, inputs = ready
        return decoder(**inputs)

    def rows(self, found, batch):
        return [_real(row) for row in found["output_ids"]]


class CTranslate2:
    """CTranslate2, one batch at a time."""

    def __init__(self, name, folder, settings):
        import ctranslate2

        self.translator = ctranslate2.Translator(
            str(folder / name),
            compute_type=name.split("_")[1],
            inter_threads=1,
            intra_threads=settings["threads"],
        )
        self.settings = settings

    def ready(self, batch, cell):
        # It appends END itself.
        tokens = [
            [f"t{index}" if index > END else "<unk>" for index in row[:-1]]
            for row in batch["sources"]
        ]
        options = {
            "beam_size": cell["beams"],
            "length_penalty": RANKING["length_penalty"],
            "max_decoding_length": batch["limit"],
            "min_decoding_length": 0 if self.settings["run"] else batch["limit"],
        }
        return tokens, options

    def decode(self, ready):
        tokens, options = ready
        return self.translator.translate_batch(tokens, **options)

    def rows(self, found, batch):
        specials = {"<pad>": PAD, "<unk>": 1, "<s>": START, "</s>": END}
        return [
            [specials[t] if t in specials else int(t[1:]) for t in result.hypotheses[0]]
            for result in found
        ]


class Marian:
    """Hugging Face's `MarianMTModel` in PyTorch."""

    def __init__(self, name, folder, settings):
        import torch
        from transformers import MarianConfig, MarianMTModel

        torch.set_num_threads(settings["threads"])
        specials = {
            "pad_token_id": PAD,
            "bos_token_id": START,
            "eos_token_id": END,
            "decoder_start_token_id": START,
            "forced_eos_token_id": None,
        }
        values = json.loads((folder / "marian.json").read_text(encoding="utf-8"))
        self.model = MarianMTModel(MarianConfig(**values, **specials)).eval()
        arrays = np.load(folder / "marian.npz")
        own = self.model.state_dict()
        with torch.no_grad():
            for key in arrays:
                own[key].copy_(torch.from_numpy(np.array(arrays[key])))
        for module in self.model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = 1e-6
        self.model.generation_config.bad_words_ids = None
        self.torch, self.settings = torch, settings

    def ready(self, batch, cell):
        from keras_seq2seq.batches import pad_rows

        sources = batch["sources"]
        ids = pad_rows(sources, len(sources), max(map(len, sources))).astype("int64")
        ids = self.torch.from_numpy(ids)
        options = {
            "num_beams": cell["beams"],
            "do_sample": False,
            "max_new_tokens": batch["limit"],
        }
        if cell["beams"] > 1:
            options["length_penalty"] = RANKING["length_penalty"]
            options["early_stopping"] = True
        if not self.settings["run"]:
            options["min_new_tokens"] = batch["limit"]
        return {"input_ids": ids, "attention_mask": (ids != PAD).long(), **options}

    def decode(self, ready):
        with self.torch.inference_mode():
            return self.model.generate(**ready)

    def rows(self, found, batch):
        return [_real(row[1:]) for row in found.numpy()]


def _real(ids):
    """Ids before END; without one those before the padding on the right."""
    ids = [int(index) for index in ids]
    if END in ids:
        return ids[: ids.index(END)]
    while ids and ids[-1] == PAD:
        ids.pop()
    return ids


RUNTIMES = {
    "graph": Ours,
    "xla": Ours,
    "jax": Ours,
    "litert_float32": LiteRT,
    "litert_int8": LiteRT,
    "ctranslate2_float32": CTranslate2,
    "ctranslate2_int8": CTranslate2,
    "marian": Marian,
}


# The worker.


def environment(name, threads):
    """Variables that a worker must be started with."""
    found = dict(os.environ)
    on_jax = name.endswith("jax")
    found["KERAS_BACKEND"] = "jax" if on_jax else "tensorflow"
    found["OMP_NUM_THREADS"] = str(threads)
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    found["TRANSFORMERS_VERBOSITY"] = "error"
    found["CUDA_VISIBLE_DEVICES"] = ""
    if on_jax:
        found["NPROC"] = str(threads)  # the size of its pool
    return found


def versions():
    """Versions of what is installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def loaded(name, folder, settings):
    """The system of a name; the reason where there is none."""
    note = folder / f"{name.split('_')[0]}.missing"
    if note.exists():
        raise MissingError(note.read_text(encoding="utf-8"))
    try:
        if settings["throughput"]:
            import throughput

            return throughput.make_file_runtime(name, folder, settings)
        return RUNTIMES[name](name, folder, settings)
    except ImportError as error:
        raise MissingError(f"not installed: {error}") from None


def answering():
    """Standard output kept for answers: whatever else is printed becomes log."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(**values):
        stream.write(json.dumps(values) + "\n")
        stream.flush()

    return answer


def limit_cores(threads):
    """Keeps this process to as many cores as threads: some pools ask for no number."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:threads])


def serve(name, folder):
    """Answers requests for one run of a cell with its seconds, or also its tokens."""
    answer = answering()
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    limit_cores(settings["threads"])
    if name == "prepare":
        from model_files import prepare

        prepare(folder, settings)
        answer(ready=True)
        return
    cells = json.loads((folder / "cells.json").read_text(encoding="utf-8"))
    try:
        system = loaded(name, folder, settings)
    except Exception as error:
        traceback.print_exc()
        answer(missing=f"{type(error).__name__}: {error}".splitlines()[0])
        return
    batches = {
        key: [(system.ready(batch, cell), batch) for batch in cell["batches"]]
        for key, cell in cells.items()
    }
    answer(ready=True)
    for line in sys.stdin:
        request = json.loads(line)
        ready = batches[request["cell"]]
        try:
            start = time.perf_counter()
            found = [system.decode(inputs) for inputs, _ in ready]
            seconds = time.perf_counter() - start
        except Exception as error:
            traceback.print_exc()
            answer(failed=f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        tokens = None
        if request["tokens"]:
            tokens = [
                row
                for result, (_, batch) in zip(found, ready, strict=True)
                for row in system.rows(result, batch)
            ]
        answer(seconds=seconds, tokens=tokens)
