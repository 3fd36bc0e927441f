"""Record values <-> tensors, in each form. `schemas.codec` says what goes in and out."""

from schemas.codecs.client import decode_response, encode_request
from schemas.codecs.decode import decode_many, form_of
from schemas.codecs.encode import encode_many

__all__ = ["decode_many", "decode_response", "encode_many", "encode_request", "form_of"]
