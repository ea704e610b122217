"""The server, the app, and what all endpoints share.

server      an app on a socket, in a thread; the app that answers while the pipeline opens
app         the app of a pipeline
shapes_app  the app of a process that serves only shapes
endpoint    endpoints as values, and the routes made from them
answers     responses and errors, and the choice of the media type
openapi     the OpenAPI document
"""
