"""Shape records, snapshots and logs, derived from the shards' changes.

registry          `Shapes`: the shapes that one process serves
follower          the thread that follows collections, and the limits on shapes
shape_definition  `ShapeDefinition`: the rows and columns of a shape
record            `ShapeRecord`: a shape as stored
live_shape        `LiveShape`: a shape with the end of its log in memory
feed              `Feed`: distributes the changes of a collection to shapes
index             `ShapeIndex`: finds the shapes that rows concern
stretch           `Stretch`: changes, and the log entries that they result in
snapshot          `Snapshots`: snapshots in chunks
contents          `Contents`: reads the rows of shapes
copies            `Copies`: counts equal rows
row_messages      messages about rows, as JSON
numbers           the transaction numbers that clients see
"""
