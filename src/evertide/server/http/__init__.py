"""What all endpoints share.

endpoint  endpoints as values, and the routes made from them
answers   responses and errors, and the choice of the media type
openapi   the OpenAPI document
"""
