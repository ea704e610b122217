// Server-sent events of a response body. By `fetch`, as `EventSource` cannot send a token.

export async function* events(body, received) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let text = ""
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    received()
    text += value.replaceAll("\r", "")
    const blocks = text.split("\n\n")
    text = blocks.pop()
    for (const block of blocks) {
      const event = parseEvent(block)
      if (event) yield event
    }
  }
}

function parseEvent(block) {
  let kind = "message"
  const lines = []
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) kind = line.slice(6).trim()
    else if (line.startsWith("data:")) lines.push(line.slice(5).trimStart())
  }
  return lines.length ? { kind, value: JSON.parse(lines.join("\n")) } : null
}
