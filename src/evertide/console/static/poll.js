// A request that a screen repeats: when it opens, and every `every_s` seconds while the page is visible.

export class Poll {
  constructor(request, redraw, every_s = 3) {
    this.value = null
    this.error = null
    this._request = request
    this._redraw = redraw
    this._isOver = false
    this._timer = every_s && setInterval(() => !document.hidden && !this._isBusy && this.now(), every_s * 1000)
    this.now()
  }

  async now() {
    this._isBusy = true
    const current = (this._last = {})
    try {
      const value = await this._request()
      if (this._isOver || current !== this._last) return
      this.value = value
      this.error = null
    } catch (error) {
      if (current === this._last) this.error = error
    } finally {
      if (current === this._last) this._isBusy = false
      if (!this._isOver) this._redraw()
    }
  }

  close() {
    this._isOver = true
    clearInterval(this._timer)
  }
}
