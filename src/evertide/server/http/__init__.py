"""The server, the app, and what all endpoints share.

server              an app on a socket, in a thread
app                 the app of a pipeline
shapes_app          the app of a process that serves only shapes
opening_app         the app that answers while the pipeline opens
endpoint            endpoints as values, and the routes made from them
answers             responses and errors
media               the choice of the media type
openapi             the OpenAPI document
garbage_collection  Python's garbage collector in a process that serves
"""
