"""`/v1/shape` over HTTP: parse requests, limit concurrency, and answer.

endpoint  `ShapeEndpoint`: the ASGI app
exchange  `Exchange`: one request, from its definition to the response; the limit on concurrent requests
subset    answers to subset requests
answers   headers and bodies of answers
openapi   the OpenAPI description
"""
