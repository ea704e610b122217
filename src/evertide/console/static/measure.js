// The width of elements: charts are drawn for the available pixels, so that their texts keep their size.

const widths = new Map()
let changed = () => {}
const observer = new ResizeObserver((entries) => {
  let isNew = false
  for (const { target, contentRect } of entries) {
    const width = Math.round(contentRect.width)
    if (width && widths.get(target.dataset.measured) !== width) {
      widths.set(target.dataset.measured, width)
      isNew = true
    }
  }
  if (isNew) changed()
})

export function onWidthChange(listener) {
  changed = listener
}

// The props of the element to measure, and its last known width.
export function measureWidth(name, fallback = 640) {
  return { props: { "data-measured": name, once: (node) => observer.observe(node) }, width: widths.get(name) ?? fallback }
}
