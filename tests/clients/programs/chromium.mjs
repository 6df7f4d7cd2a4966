// A browser for the tests. It reads commands, one JSON object a line, and prints what happens:
//   {"ready": true}                                     it can be used
//   {"answer": number, "value": …} or {…, "failed": …}  a command is done
//   {"tab": name, "said": {…}}                          a page said something on its console
import { createInterface } from 'node:readline'
import { chromium } from 'playwright-core'

const print = (what) => console.log(JSON.stringify(what))
const args = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
  '--disable-background-networking', '--disable-component-update', '--disable-sync',
]
const browser = await chromium.launch({ executablePath: process.argv[2], args })
const pages = new Map()

async function tab(name) {
  if (!pages.has(name)) {
    const page = await (await browser.newContext()).newPage()
    pages.set(name, page)
    page.on('console', (message) => {
      let said
      try { said = JSON.parse(message.text()) } catch { said = { console: message.text() } }
      print({ tab: name, said })
    })
    page.on('pageerror', (error) => print({ tab: name, said: { pageerror: String(error) } }))
  }
  return pages.get(name)
}

const commands = {
  open: async (page, { url }) => { await page.goto('about:blank'); await page.goto(url) },
  reload: async (page) => { await page.reload() },
  close: async (page, command) => { pages.delete(command.tab); await page.context().close() },
  run: (page, { code }) => page.evaluate(code),
}

print({ ready: true })
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  try {
    print({ answer: command.number, value: await commands[command.do](await tab(command.tab), command) })
  } catch (error) {
    print({ answer: command.number, failed: String(error) })
  }
}
await browser.close()
