"""What is answered in place of outputs: one error with gRPC's code and HTTP's."""

# As TF Serving's REST interface translates the codes that it uses.
HTTP_STATUS = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}
# A body that is too long, which TF Serving never answers.
TOO_LONG = 413


class RequestError(ValueError):
    """A request that a server refused, on either side of the connection.

    Args:
        code: gRPC's name of the kind of error, such as `INVALID_ARGUMENT`.
        message: What the server says of it.
        http_status: The status of HTTP; by default the one that TF Serving answers.
    """

    def __init__(
        self, code: str, message: str, *, http_status: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or HTTP_STATUS.get(code, 500)


def invalid(message: str) -> RequestError:
    """The error of a request that can never be answered as it is.

    Args:
        message: What is wrong with it.
    """
    return RequestError("INVALID_ARGUMENT", message)


def code_of_status(status: int) -> str:
    """GRPC's name for a status of HTTP, for errors that came without one.

    Args:
        status: The status.
    """
    if status == TOO_LONG:
        return "RESOURCE_EXHAUSTED"
    names = (name for name, number in HTTP_STATUS.items() if number == status)
    return next(names, "UNKNOWN")
