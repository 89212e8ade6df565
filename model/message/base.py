"""What all documents share: a `type`; the id of a question or an order, and of what answers it."""

import msgspec


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of all documents."""


class Request(Document, frozen=True, kw_only=True):
    """A question or an order; the answer carries the same `id`.

    For an order, `id` is the op_id: the same id gets the same answer, also after a restart of the broker.
    """

    id: str
    """Chosen by who asks, 1 to 128 characters."""


class Reply(Document, frozen=True, kw_only=True):
    """An answer; `id` is the request's."""

    id: str
