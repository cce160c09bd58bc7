"""What every table of a recipe has in common."""

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table of the file: unknown keys are mistakes, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
