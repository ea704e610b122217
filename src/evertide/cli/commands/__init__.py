"""The commands, one module per group.

run      `run`, `push`, `checkpoint`, `retry`, `pause`, `resume`
plan     `plan`
demo     `demo`
promote  `promote`
query    `explain`, `query`, `subscribe`
status   `status`, `journal`, `checkpoints`
storage  `fsck`, `gc`, `export`, `import`
shapes   `shapes`
"""
