"""The commands, one module per group.

run      `run`, `plan`, `push`, `checkpoint`, `retry`, `promote`, `pause`, `resume`
demo     `demo`
query    `explain`, `query`, `subscribe`
status   `status`, `journal`, `checkpoints`
storage  `fsck`, `gc`, `export`, `import`
shapes   `shapes`
"""
