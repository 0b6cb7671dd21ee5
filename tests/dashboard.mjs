// Drives the dashboard in Chromium as an operator would; leaves screenshots. Started by tests/it/browser.rs.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { PLAYWRIGHT, CHROMIUM, DASHBOARD, TOKEN, PLATFORM, SCREENSHOTS } = process.env;
const { chromium } = createRequire(import.meta.url)(PLAYWRIGHT);
mkdirSync(SCREENSHOTS, { recursive: true });

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox"] });
const complaints = [];

/** A tab that notes what goes wrong in it and what it asks of others. */
async function open(options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(15000);
  const page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && complaints.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => complaints.push(`error: ${error}`));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(DASHBOARD).origin) complaints.push(`asks ${request.url()}`);
  });
  return page;
}

const shoot = (page, name) => page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });
const step = (text) => console.log(text);

/** Starts a session at the platform, as its owner would. */
async function session(script) {
  const answer = await fetch(`${PLATFORM}/agents/sessions`, {
    method: "POST",
    headers: { authorization: "Bearer sk-test", "openai-beta": "agents=v1", "content-type": "application/json" },
    body: JSON.stringify({ agent: { model: "scripted" }, input: script }),
  });
  assert.ok(answer.ok, `the platform answers ${answer.status}`);
  return (await answer.json()).id;
}

async function login(page) {
  await page.goto(DASHBOARD);
  await page.getByLabel("Admin token").fill(TOKEN);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Functions" }).waitFor();
}

const page = await open();

step("only the token opens");
await page.goto(`${DASHBOARD}/calls?state=refused`);
await page.getByLabel("Admin token").fill("wrong");
await page.getByRole("button", { name: "Log in" }).click();
await page.getByRole("alert").getByText("not the token").waitFor();
assert.deepEqual(complaints.splice(0).filter((text) => !text.includes("401")), [], "a wrong token is a 401 and no more");
await shoot(page, "login");
await page.getByLabel("Admin token").fill(TOKEN);
await page.getByLabel("Admin token").press("Enter");
await page.waitForURL("**/calls?state=refused");
const [cookie] = await page.context().cookies();
assert.ok(cookie.httpOnly && cookie.sameSite === "Strict" && !cookie.value.includes(TOKEN), JSON.stringify(cookie));

step("the overview shows what needs somebody");
await page.getByRole("link", { name: "Overview" }).click();
for (const [what, count] of [["held for you", 1], ["refused", 1], ["dead letters", 1]]) {
  await page.locator(".tiles").getByRole("link", { name: `${count} ${what}` }).waitFor();
}
assert.equal(await page.locator(".charts svg").count(), 4);
await shoot(page, "overview");

step("a call that waits is approved");
const question = page.locator(".question", { hasText: "transfer" });
const told = await question.locator("pre").innerText();
assert.ok(told.includes("250") && told.includes("[redacted]") && !told.includes("DE89"), told);
await question.getByLabel("Your name").fill("alice");
await question.getByRole("button", { name: "Approve transfer" }).click();
await page.getByText("Approved: the handler starts.").waitFor();
await page.locator("[data-live=tail] tr", { hasText: "transfer" }).getByText("settled").waitFor();
await page.getByRole("link", { name: "Approvals" }).click();
await page.locator("table tr", { hasText: "alice" }).getByText("approved").waitFor();
await shoot(page, "approvals");
await page.getByRole("link", { name: "Overview" }).click();

step("a new call comes by itself");
const fresh = await session("shout {\"text\":\"fresh\"}");
const row = page.locator("[data-live=tail] tr", { hasText: fresh });
await row.getByText("settled").waitFor();

step("a function is paused and resumed");
const shout = page.locator(".functions tr", { hasText: "shout" });
await shout.getByRole("button", { name: "Pause shout" }).click();
await page.getByText("Paused. Calls that run go on").waitFor();
await shout.getByText("paused").waitFor();
await shoot(page, "overview-paused");
await shout.getByRole("button", { name: "Resume shout" }).click();
await page.getByText("Resumed.").waitFor();

step("a call shows its result without what is redacted");
await page.getByRole("link", { name: "Calls", exact: true }).click();
await page.getByLabel("Function").fill("lookup_order");
await page.getByRole("button", { name: "Show" }).click();
await page.waitForURL(/function=lookup_order/);
await shoot(page, "calls");
await page.locator(".calls tbody tr").last().getByRole("link").click();
await page.getByRole("heading", { name: "lookup_order" }).waitFor();
const result = await page.locator("pre").innerText();
assert.ok(result.includes("shipped") && result.includes("[redacted]") && !result.includes("4111"), result);
assert.ok((await page.locator(".timeline li").count()) >= 5, await page.locator(".timeline").innerText());
await shoot(page, "call");

step("a held call is answered by hand");
await page.goto(`${DASHBOARD}/`);
await page.locator(".tiles").getByRole("link", { name: "held for you" }).click();
await page.locator(".calls tbody").getByRole("link", { name: "refund" }).click();
await shoot(page, "call-held");
await page.getByLabel("Answer it by hand").fill("refunded, reference 4711");
await page.getByRole("button", { name: "Send as output" }).click();
await page.getByText("The result is stored and will be submitted.").waitFor();
await page.locator("h1 .state", { hasText: "settled" }).waitFor();

step("a refused result is submitted again");
await page.goto(`${DASHBOARD}/calls?state=refused`);
await page.locator(".calls tbody").getByRole("link", { name: "shout" }).click();
await page.getByRole("button", { name: "Resubmit" }).click();
await page.locator("h1 .state", { hasText: "settled" }).waitFor();

step("a dead letter is given back");
await page.getByRole("link", { name: "Dead letters" }).click();
await page.getByText("without being finished").waitFor();
await shoot(page, "dead");
await page.getByRole("button", { name: /^Redrive openai/ }).click();
await page.getByText("Given back to the workers.").waitFor();
await page.getByText("No dead letters.").waitFor();

step("the keyboard is enough");
await page.goto(`${DASHBOARD}/`);
await page.keyboard.press("Tab");
assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
for (const name of ["actiond", "Overview", "Calls"]) {
  await page.keyboard.press("Tab");
  assert.equal((await page.evaluate(() => document.activeElement.textContent)).trim(), name);
}
await page.keyboard.press("Enter");
await page.waitForURL("**/calls");

step("it is readable in the dark and on a phone");
await session("transfer {\"amount\":99,\"to\":\"somebody\"}");
await page.goto(`${DASHBOARD}/approvals`);
await page.locator(".question", { hasText: "99" }).waitFor();
const state = await page.context().storageState();
for (const [name, options] of [
  ["dark", { colorScheme: "dark" }],
  ["phone", { viewport: { width: 360, height: 740 } }],
  ["phone-dark", { viewport: { width: 360, height: 740 }, colorScheme: "dark" }],
]) {
  const other = await open({ ...options, storageState: state });
  const link = async () => (await other.locator(".calls tbody a").first().getAttribute("href"));
  for (const [place, path] of [["overview", "/"], ["calls", "/calls"], ["call", null], ["approvals", "/approvals"], ["dead", "/dead"]]) {
    await other.goto(DASHBOARD + (path ?? (await link())));
    const wide = await other.evaluate(() => document.scrollingElement.scrollWidth - window.innerWidth);
    const cut = await other.evaluate(() => [...document.querySelectorAll(".scroll")].some((e) => e.scrollWidth > e.clientWidth));
    assert.ok(!cut, `a table of ${place} is cut off for ${name}`);
    assert.ok(wide <= 0, `${place} is ${wide} px too wide for ${name}`);
    await shoot(other, `${place}-${name}`);
  }
  if (name === "dark") {
    const ground = await other.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.ok(Math.max(...ground.match(/\d+/g).map(Number)) < 60, ground);
  }
  await other.context().close();
}

step("it works without script");
const plain = await open({ storageState: state, javaScriptEnabled: false });
await plain.goto(DASHBOARD);
assert.ok((await plain.locator(".calls tbody tr").count()) > 5);
await plain.context().close();

step("who logs out is out");
await page.getByRole("button", { name: "Log out" }).click();
await page.waitForURL("**/login");
await page.goto(`${DASHBOARD}/calls`);
await page.waitForURL("**/login?to=**");

assert.deepEqual(complaints, []);
await browser.close();
