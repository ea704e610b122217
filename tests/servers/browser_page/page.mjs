// Opens a page in a real browser, and does what it is told: a JSON object in each line, answered by one.
//
//   node page.mjs URL [EXECUTABLE]      without an executable, the Chromium that came from npm
//
//   {"go": URL}
//   {"see": SELECTOR, "text": TEXT}     until there is such an element with this text in it
//   {"gone": SELECTOR}                  until there is none
//   {"click": SELECTOR}, {"press": KEYS}, {"fill": SELECTOR, "value": TEXT}, {"choose": SELECTOR, "value": TEXT}
//   {"ask": EXPRESSION}                 what it comes to, as JSON: {"told": ...}
//   {"width": PIXELS, "height": PIXELS, "dark": BOOLEAN, "still": BOOLEAN}
//   {"shot": FILE, "whole": BOOLEAN}
//
// `errors` has everything since the last answer that the page did not expect: exceptions, and what the browser itself calls an error. Requests
// that fail are no errors of a page: its server may be away, or may refuse.

import { createInterface } from "node:readline"
import { chromium } from "playwright-core"

const LIMIT_MS = Number(process.env.EVERTIDE_BROWSER_LIMIT_MS ?? 120_000)
const [url, given] = process.argv.slice(2)
const npm = given ? undefined : (await import("@sparticuz/chromium")).default
const browser = await chromium.launch({
  executablePath: given ?? (await npm.executablePath()),
  args: [
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP *.example 127.0.0.1", // pages of other origins
  ],
  headless: true,
})
const page = await browser.newPage({ ignoreHTTPSErrors: true })
page.setDefaultTimeout(LIMIT_MS)
const errors = []
page.on("pageerror", (error) => errors.push(String(error)))
page.on("console", (line) => {
  if (line.type() === "error" && !line.text().startsWith("Failed to load resource")) errors.push(line.text())
})
await page.goto(url)

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n")
say({ version: browser.version() })

async function done(told) {
  const at = (selector) => page.locator(selector).first()
  if (told.go) await page.goto(told.go)
  else if (told.see) await page.locator(told.see).filter({ hasText: told.text }).first().waitFor({ timeout: LIMIT_MS })
  else if (told.gone) await at(told.gone).waitFor({ state: "detached", timeout: LIMIT_MS })
  else if (told.click) await at(told.click).click()
  else if (told.press) await page.keyboard.press(told.press)
  else if (told.fill) await at(told.fill).fill(told.value)
  else if (told.choose) await at(told.choose).selectOption(told.value)
  else if (told.ask) return { told: await page.evaluate(told.ask) }
  if (told.width) await page.setViewportSize({ width: told.width, height: told.height ?? 900 })
  if (told.dark != null) await page.emulateMedia({ colorScheme: told.dark ? "dark" : "light" })
  if (told.still != null) await page.emulateMedia({ reducedMotion: told.still ? "reduce" : "no-preference" })
  if (told.shot) await page.screenshot({ path: told.shot, fullPage: told.whole ?? true })
  return {}
}

for await (const line of createInterface({ input: process.stdin })) {
  try {
    say({ ...(await done(JSON.parse(line))), errors: errors.splice(0) })
  } catch (error) {
    say({ failed: error.message, errors: errors.splice(0), page: await page.locator("body").innerText() })
  }
}
await browser.close()
