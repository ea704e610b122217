// A question that a screen asks by itself: when it is opened, and again every some seconds while somebody looks.

export class Asking {
  constructor(question, redraw, every_s = 3) {
    this.value = null
    this.error = null
    this._question = question
    this._redraw = redraw
    this._isOver = false
    this._timer = every_s && setInterval(() => !document.hidden && !this._isBusy && this.now(), every_s * 1000)
    this.now()
  }

  async now() {
    this._isBusy = true
    const asked = (this._last = {})
    try {
      const value = await this._question()
      if (this._isOver || asked !== this._last) return
      this.value = value
      this.error = null
    } catch (error) {
      if (asked === this._last) this.error = error
    } finally {
      if (asked === this._last) this._isBusy = false
      if (!this._isOver) this._redraw()
    }
  }

  close() {
    this._isOver = true
    clearInterval(this._timer)
  }
}
