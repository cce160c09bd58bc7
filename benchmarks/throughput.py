"""Files of sentences translated to files: what `decode.py --throughput` measures.

Both sides read text, tokenise, decode and write text; models are loaded before.
"""

import functools
import os
from pathlib import Path

from peers import RANKING, START, MissingError

# Of CTranslate2 with its usual settings, and with one thread for each of two batches,
# which its own documentation advises for throughput.
FILE_RUNTIMES = (
    "translator_graph",
    "translator_jax",
    "ctranslate2_float32_file",
    "ctranslate2_float32_parallel",
    "ctranslate2_int8_file",
    "ctranslate2_int8_parallel",
)


def write_sentences(folder, settings):
    """Writes the sentences that count, one a line, and returns their number."""
    lines = Path(settings["text"]).read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if line.strip()][: settings["limit"]]
    text = "".join(f"{line}\n" for line in lines)
    (folder / "sentences.txt").write_text(text, encoding="utf-8")
    return len(lines)


def write_ctranslate2_folders(folder, settings):
    """Exports the run for each quantisation that is asked for."""
    import keras_seq2seq as ks
    from keras_seq2seq.export.ctranslate2 import export_ctranslate2

    translator = ks.load(settings["run"])
    for kind in ("float32", "int8"):
        if any(name.startswith(f"ctranslate2_{kind}") for name in settings["runtimes"]):
            quantization = None if kind == "float32" else kind
            export_ctranslate2(
                translator, folder / f"run_{kind}", quantization=quantization
            )


class _Files:
    """A cell is the whole file; `decode` answers the path of what it wrote."""

    def __init__(self, name, folder, settings):
        self.source = folder / "sentences.txt"
        self.target = folder / f"{name}.txt"
        self.settings = settings

    def ready(self, batch, cell):
        return cell["beams"]

    def rows(self, found, batch):
        return self.target.read_text(encoding="utf-8").splitlines()


class OurFiles(_Files):
    """`Translator.translate_lines`, which the command line runs."""

    def __init__(self, name, folder, settings):
        super().__init__(name, folder, settings)
        from keras_seq2seq.batches import threads_for_files

        # As the command line does. The process keeps to as many cores as threads.
        os.environ["TF_NUM_INTRAOP_THREADS"] = str(threads_for_files())
        import keras_seq2seq as ks

        self.translator = ks.load(settings["run"])

    def decode(self, beams):
        from keras_seq2seq.lines import read_lines

        with self.target.open("w", encoding="utf-8", newline="\n") as target:
            for found in self.translator.translate_lines(
                read_lines(self.source), num_beams=beams, **RANKING
            ):
                target.write(found[0].text + "\n")


class CTranslate2Files(_Files):
    """`translate_file` with SentencePiece on both sides."""

    def __init__(self, name, folder, settings):
        super().__init__(name, folder, settings)
        import ctranslate2
        import sentencepiece

        _, kind, way = name.split("_")
        exported = folder / f"run_{kind}"
        threads = settings["threads"]
        parallel = way == "parallel"
        self.translator = ctranslate2.Translator(
            str(exported),
            compute_type=kind,
            inter_threads=threads if parallel else 1,
            intra_threads=1 if parallel else threads,
        )

        def tokenizer(side):
            path = exported / "tokenizer" / f"{side}.model"
            if not path.exists():
                path = path.with_name("shared.model")
            return sentencepiece.SentencePieceProcessor(model_file=str(path))

        self.source_tokenizer = tokenizer("source")
        self.target_tokenizer = tokenizer("target")
        if self.target_tokenizer.bos_id() != START:
            raise MissingError("the tokenizers are not those of a run")

    def decode(self, beams):
        self.translator.translate_file(
            str(self.source),
            str(self.target),
            max_batch_size=32,
            beam_size=beams,
            length_penalty=RANKING["length_penalty"],
            min_decoding_length=0,
            disable_unk=True,
            source_tokenize_fn=functools.partial(
                self.source_tokenizer.encode, out_type=str
            ),
            target_detokenize_fn=self.target_tokenizer.decode,
        )


def make_file_runtime(name, folder, settings):
    """The system of a name of `FILE_RUNTIMES`."""
    make = OurFiles if name.startswith("translator") else CTranslate2Files
    return make(name, folder, settings)
