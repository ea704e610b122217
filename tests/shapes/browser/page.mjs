// Opens a page in a real browser, and does what it is told: a JSON object in each line, answered by one.
//
//   node page.mjs URL [EXECUTABLE]      without an executable, the Chromium that came from npm
//
//   {"see": SELECTOR, "text": TEXT}     until there is such an element with this text in it
//   {"choose": SELECTOR, "value": TEXT}
//   {"shot": FILE, "width": PIXELS, "dark": BOOLEAN}

import { createInterface } from "node:readline"
import { chromium } from "playwright-core"

const [url, given] = process.argv.slice(2)
const npm = given ? undefined : (await import("@sparticuz/chromium")).default
const browser = await chromium.launch({
  executablePath: given ?? (await npm.executablePath()),
  args: npm ? npm.args : ["--no-sandbox"],
  headless: true,
})
const page = await browser.newPage()
const errors = []
page.on("pageerror", (error) => errors.push(String(error)))
await page.goto(url)

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n")
say({ version: browser.version() })

for await (const line of createInterface({ input: process.stdin })) {
  const told = JSON.parse(line)
  try {
    if (told.see) {
      await page.locator(told.see).filter({ hasText: told.text }).first().waitFor({ timeout: 60_000 })
    } else if (told.choose) {
      await page.locator(told.choose).selectOption(told.value)
    } else {
      await page.setViewportSize({ width: told.width, height: 900 })
      await page.emulateMedia({ colorScheme: told.dark ? "dark" : "light" })
      await page.screenshot({ path: told.shot, fullPage: true })
    }
    say({ errors })
  } catch (error) {
    say({ failed: error.message, errors, page: await page.locator("body").innerText() })
  }
}
await browser.close()
