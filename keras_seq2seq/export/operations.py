"""Which TensorFlow operations an exported graph may hold, and reading them unrun.

A SavedModel is a program: its graph can read and write files when it is called, or
already when it is loaded. So the graph is read as data first and compared with a list
of what is allowed; a list of what is forbidden would always miss something.
"""

from collections import deque
from pathlib import Path

from tensorflow.core.framework import attr_value_pb2, node_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

# Calls, loops, constants and reading weights.
_STRUCTURE_OPERATIONS = """
    Assert Const Identity IdentityN If NoOp PartitionedCall Placeholder
    PlaceholderWithDefault PreventGradient ReadVariableOp ResourceGather
    ResourceGatherNd StatefulPartitionedCall StatelessIf StatelessWhile StopGradient
    VarHandleOp While
"""

# Pure functions of tensors, all in every TensorFlow 2 server since long.
_TENSOR_OPERATIONS = """
    Abs Add AddN AddV2 All Any ArgMax ArgMin Atan2 BatchMatMul BatchMatMulV2
    BatchMatMulV3 BiasAdd Bitcast BitwiseAnd BitwiseOr BitwiseXor BroadcastArgs
    BroadcastTo Cast Ceil ClipByValue Concat
    ConcatV2 ConcatOffset Conv2D Cos Cumprod Cumsum CumulativeLogsumexp DepthToSpace
    DepthwiseConv2dNative Diag DiagPart Div DivNoNan Einsum Elu EnsureShape Equal Erf
    Erfc Exp ExpandDims Expm1 Fill Floor FloorDiv FloorMod FusedBatchNormV3 Gather
    GatherNd GatherV2 Greater GreaterEqual InvertPermutation IsFinite IsInf IsNan L2Loss
    LeakyRelu Less LessEqual LinSpace Log Log1p LogSoftmax LogicalAnd LogicalNot
    LogicalOr MatMul MatrixBandPart MatrixDiagV3 Max Maximum Mean Min Minimum Mod Mul
    MulNoNan Neg NotEqual OneHot OnesLike Pack Pad PadV2 ParallelConcat Pow Prod Range
    Rank RealDiv Reciprocal Relu Relu6 Reshape ReverseSequence ReverseV2 RightShift Rint
    Roll Round Rsqrt ScatterNd Select SelectV2 Selu Shape ShapeN Sigmoid Sign Sin Size
    Slice Snapshot Softmax Softplus Softsign Split SplitV Sqrt Square SquaredDifference
    Squeeze StridedSlice Sub Sum Tanh TensorScatterAdd TensorScatterMax TensorScatterMin
    TensorScatterUpdate Tile TopK TopKV2 Transpose TruncateDiv TruncateMod Unpack
    UnsortedSegmentMax UnsortedSegmentSum Unique UniqueV2 Where Xdivy Xlogy ZerosLike
"""

# Growing lists of tensors, which Keras' own recurrent loop collects its outputs in.
_LIST_OPERATIONS = """
    TensorListElementShape TensorListFromTensor TensorListGetItem TensorListLength
    TensorListReserve TensorListSetItem TensorListStack
"""

# Pure functions of strings and ragged values, in core TensorFlow.
_STRING_OPERATIONS = """
    AsString RaggedGather RaggedRange RaggedTensorToTensor ReduceJoin
    StaticRegexFullMatch StaticRegexReplace StringJoin StringLength StringLower
    StringSplitV2 StringStrip StringUpper Substr UnicodeDecode
    UnicodeDecodeWithOffsets UnicodeEncode UnicodeTranscode UnsortedSegmentJoin
"""

_SENTENCEPIECE_OPERATIONS = """
    SentencepieceDetokenizeOp SentencepieceIdToStringOp SentencepieceOp
    SentencepieceTokenizeOp SentencepieceVocabSizeOp
    TFText>FastSentencepieceDetokenize TFText>FastSentencepieceTokenizeWithOffsets
"""

# What every SavedModel holds for its weights; outside signatures only.
_SAVER_OPERATIONS = """
    AssignVariableOp DisableCopyOnRead MergeV2Checkpoints RestoreV2 SaveV2
    ShardedFilename VarIsInitializedOp
"""

#: Found in exports with `--jit`: pure functions that only XLA can compute.
XLA_OPERATIONS = frozenset({"XlaDynamicUpdateSlice"})
CORE_OPERATIONS = frozenset(
    (
        _STRUCTURE_OPERATIONS
        + _TENSOR_OPERATIONS
        + _LIST_OPERATIONS
        + _STRING_OPERATIONS
    ).split()
)
TEXT_OPERATIONS = frozenset(_SENTENCEPIECE_OPERATIONS.split())
SAVER_OPERATIONS = frozenset(_SAVER_OPERATIONS.split())


class Graph:
    """The graph of a SavedModel, read as data: nothing in it is run.

    Args:
        folder: Version folder, the one with `saved_model.pb`.

    Raises:
        FileNotFoundError: If there is no `saved_model.pb` in the folder.
        ValueError: If the file is no SavedModel with one graph tagged `serve`.
    """

    def __init__(self, folder: Path) -> None:
        file = Path(folder) / "saved_model.pb"
        if not file.is_file():
            raise FileNotFoundError(
                f"No saved_model.pb in {folder}. Expected the version folder of a "
                "SavedModel, such as exports/saved_model/1."
            )
        self.content = file.read_bytes()
        saved_model = saved_model_pb2.SavedModel()
        try:
            saved_model.ParseFromString(self.content)
        except Exception as error:  # Its class differs between protobuf versions.
            raise ValueError(f"{file} is not a SavedModel: {error}.") from error
        served = [
            graph
            for graph in saved_model.meta_graphs
            if "serve" in graph.meta_info_def.tags
        ]
        if len(served) != 1:
            raise ValueError(
                f'{file} must hold one graph tagged "serve". Found: {len(served)}.'
            )
        self._graph: meta_graph_pb2.MetaGraphDef = served[0]
        self._nodes = {node.name: node for node in self._graph.graph_def.node}
        self._functions = {
            function.signature.name: function
            for function in self._graph.graph_def.library.function
        }

    @property
    def signatures(self) -> dict[str, meta_graph_pb2.SignatureDef]:
        """The signatures that a server offers, without the loader's own."""
        return {
            name: signature
            for name, signature in sorted(self._graph.signature_def.items())
            if not name.startswith("__saved_model")
        }

    @property
    def tensorflow_version(self) -> str:
        """Version of TensorFlow that wrote the graph."""
        return self._graph.meta_info_def.tensorflow_version

    def operations(self) -> set[str]:
        """Names of all operations, used by a signature or not."""
        return self._with_functions(list(self._nodes.values()), every_function=True)

    def signature_operations(self, name: str) -> set[str]:
        """Names of the operations that one signature can reach."""
        return self._reached_by(self.signatures[name])

    def initializer_operations(self) -> set[str]:
        """Names of the operations that run when the SavedModel is loaded.

        Reading the weights aside, which the loader itself asks for.
        """
        name = "__saved_model_init_op"
        if name not in self._graph.signature_def:
            return set()
        return self._reached_by(self._graph.signature_def[name])

    def _reached_by(self, signature: meta_graph_pb2.SignatureDef) -> set[str]:
        """Operations that a signature's outputs need."""
        waiting = deque(
            tensor.name.split(":")[0] for tensor in signature.outputs.values()
        )
        reached: dict[str, node_def_pb2.NodeDef] = {}
        while waiting:
            node_name = waiting.popleft()
            if node_name in reached or node_name not in self._nodes:
                continue
            node = reached[node_name] = self._nodes[node_name]
            waiting.extend(part.lstrip("^").split(":")[0] for part in node.input)
        return self._with_functions(list(reached.values()))

    def xla_compiled(self) -> list[str]:
        """Names of nodes and functions that demand compilation by XLA.

        The stock TF Serving binary refuses to run them.
        """
        marked = [
            node.name
            for nodes in self._all_node_lists()
            for node in nodes
            if _is_true(node.attr, "_XlaMustCompile")
        ]
        marked += [
            name
            for name, function in self._functions.items()
            if _is_true(function.attr, "_XlaMustCompile")
        ]
        return sorted(marked)

    def _all_node_lists(self):
        yield self._graph.graph_def.node
        for function in self._functions.values():
            yield function.node_def

    def _with_functions(self, nodes, *, every_function=False) -> set[str]:
        """Operations of nodes and of the functions they call, at any depth."""
        found: set[str] = set()
        waiting = deque([nodes])
        seen: set[str] = set()
        if every_function:
            waiting.extend(function.node_def for function in self._functions.values())
            seen.update(self._functions)
        while waiting:
            for node in waiting.popleft():
                # A node may name a function as its operation.
                names = {node.op, *_functions_in(node.attr)} & self._functions.keys()
                if node.op not in self._functions:
                    found.add(node.op)
                for name in names - seen:
                    seen.add(name)
                    waiting.append(self._functions[name].node_def)
        return found


def _is_true(attributes, name: str) -> bool:
    """Whether an attribute is there and set."""
    return name in attributes and (attributes[name].b or attributes[name].s != b"")


def _functions_in(attributes) -> set[str]:
    """Names of the functions that a node's attributes refer to."""
    names = set()
    for value in attributes.values():
        kind = attr_value_pb2.AttrValue.WhichOneof(value, "value")
        if kind == "func":
            names.add(value.func.name)
        elif kind == "list":
            names.update(function.name for function in value.list.func)
    return names


# What a LiteRT file may not hold: state, and calls of what is not in the file.
ODD_LITERT_OPERATIONS = frozenset(
    """
    ASSIGN_VARIABLE CALL CALL_ONCE CUSTOM DELEGATE HASHTABLE HASHTABLE_FIND
    HASHTABLE_IMPORT HASHTABLE_LOOKUP HASHTABLE_SIZE MULTINOMIAL RANDOM_STANDARD_NORMAL
    RANDOM_UNIFORM READ_VARIABLE STABLEHLO_CUSTOM_CALL VAR_HANDLE
    """.split()
)


def litert_operations(content: bytes) -> tuple[set[str], list[str]]:
    """Reads which operations a LiteRT file holds, without running it.

    Args:
        content: The file's content.

    Returns:
        Names of the builtin operations, and those of custom ones.

    Raises:
        ImportError: If LiteRT is not installed.
        ValueError: If the content is no LiteRT file.
    """
    from ai_edge_litert import schema_py_generated as schema

    if content[4:8] != b"TFL3":
        raise ValueError(
            "A LiteRT file must have the mark TFL3 in its bytes 4 to 8. Received: "
            f"{content[4:8]!r}."
        )
    names = {
        value: name
        for name, value in vars(schema.BuiltinOperator).items()
        if not name.startswith("_")
    }
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i) for i in range(model.OperatorCodesLength())]
    # Older files have the code in the other place.
    builtin = [max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes]
    custom = [code.CustomCode() for code in codes if code.CustomCode()]
    return {names[code] for code in builtin}, [name.decode() for name in custom]
