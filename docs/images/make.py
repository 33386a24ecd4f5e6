"""Makes the images beside this file: real plans and real runs, shown by the program, clicked through in Chromium.

    pip install playwright pyte && python3 docs/images/make.py target/release/plimsoll [/usr/bin/chromium]

What is clicked is checked on the way: whatever does not come as expected ends the script with an error. It also says how
long a plan of some tens of thousands of buffers takes to open, how many frames a second zooming has, how fast a run of
100,000 updates is there, and what a dashboard takes of a processor while its page is open.
"""
import fcntl, html, json, math, os, pathlib, pty, re, struct, subprocess, sys, tempfile, termios, time

import pyte
from playwright.sync_api import sync_playwright

HERE = pathlib.Path(__file__).parent
MISTRAL = """\
model: mistral-7b
method: {lora: {r: 16, alpha: 32}}
data: {max_length: 512}
batch: {sequences: 64}
"""
DEEP = """\
model: {family: llama, hidden_size: 1024, num_hidden_layers: 420, num_attention_heads: 8, num_key_value_heads: 4, intermediate_size: 2816, vocab_size: 32000, init: random}
method: {lora: {r: 16, alpha: 32}}
data: {max_length: 512}
batch: {sequences: 16}
"""
ZOOMING = """
new Promise((done) => {
  const begin = performance.now();
  let frames = 0;
  const frame = () => {
    plots[0].zoom(700, 400, frames % 60 < 30 ? 0.96 : 1.04, frames % 60 < 30 ? 0.96 : 1.04);
    if (++frames < 120) requestAnimationFrame(frame);
    else done(frames / ((performance.now() - begin) / 1000));
  };
  requestAnimationFrame(frame);
})
"""
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
PHONE = {"is_mobile": True, "has_touch": True, "device_scale_factor": 2}
# The page is given this long for what takes a run or a plan to happen.
PATIENCE_S = 600


def check(is_so, words):
    if not is_so:
        sys.exit(f"error: {words}")


def until(page, expression, *given):
    """Waits for something to be so. The page's policy forbids what the browser's driver has for that."""
    end = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, *given):
        if time.monotonic() > end:
            late = pathlib.Path(tempfile.gettempdir()) / "late.png"
            page.screenshot(path=late, full_page=True)
            sys.exit(f"error: it never was so: {expression} {given}; {late} shows what was")
        time.sleep(0.05)


class Browser:
    """Pages that may ask nobody but the program itself."""

    def __init__(self, chromium):
        self.chromium = chromium

    def page(self, address, width, height, **settings):
        context = self.chromium.new_context(viewport={"width": width, "height": height}, **settings)
        context.set_default_timeout(PATIENCE_S * 1000)
        context.on("request", lambda request: check(
            re.match(r"(http://127\.0\.0\.1:\d+/|file:|data:)", request.url), f"the page asks {request.url}"))
        page = context.new_page()
        page.on("pageerror", lambda error: sys.exit(f"error: the page failed: {error}"))
        page.goto(address)
        page.evaluate(DRAWN)
        return page


def fits_phone(page):
    check(page.evaluate("document.documentElement.scrollWidth") <= 390, "wider than a phone")


def pictures(program, folder, browser):
    def plan(name, text, *flags):
        (folder / f"{name}.yaml").write_text(text)
        command = [program, "plan", f"{name}.yaml", "--quiet", "--html", f"{name}.html", *flags]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return (folder / f"{name}.html").as_uri()

    card = ["--device", "RTX 4090", "--gpu", "22GiB"]
    single = plan("mistral-7b-lora", MISTRAL, *card)
    beside = plan("mistral-7b", MISTRAL, *card, "--beside", "lowest")
    deep = plan("deep", DEEP, "--device", "H100", "--gpu", "30GiB")
    browser.page(single, 1280, 900).screenshot(path=HERE / "plan.png")
    browser.page(beside, 1280, 1000, color_scheme="dark").screenshot(path=HERE / "plan-beside.png")
    began = time.monotonic()
    shown = browser.page(deep, 1400, 1000)
    seconds = time.monotonic() - began
    buffers = shown.evaluate("plots[0].timeline.buffers.length")
    print(f"{buffers} buffers: open in {seconds:.2f} s, {shown.evaluate(ZOOMING):.0f} frames/s while zooming")
    fits_phone(browser.page(single, 390, 844, **PHONE))
    # The same for documents; a browser must take the pixels for an image.
    documents = ["--svg", "plan.svg", "--png", HERE / "plan-document.png"]
    subprocess.run([program, "plan", "mistral-7b-lora.yaml", "--quiet", *card, *documents], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    size = "[document.images[0].naturalWidth, document.images[0].naturalHeight]"
    check(browser.page((HERE / "plan-document.png").as_uri(), 1280, 900).evaluate(size) == [2400, 1440], "no image")


class Dashboard:
    def __init__(self, program, folder):
        command = [program, "dashboard", "runs"]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().strip()

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.terminate()
        self.process.wait()


def verdict(page, words):
    """Waits until the plan that is shown is that of what is filled in."""
    until(page, "(words) => !document.querySelector('#draft')?.classList.contains('working')"
                " && document.querySelector('#verdict')?.textContent === words", words)


def slide(page, share):
    """Pulls the slider of the host's memory to a share of its length, with the mouse."""
    box = page.locator("#host").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] - 8, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 8 + (box["width"] - 16) * share, middle, steps=8)
    page.mouse.up()


def state(page, words):
    until(page, "(words) => document.querySelector('#state')?.textContent === words", words)


def start(page, name, steps):
    page.fill("#steps", str(steps))
    page.fill("#name", name)
    page.wait_for_timeout(300)
    verdict(page, "It fits")
    page.click("#go")


def clicks(program, folder, browser):
    dashboard = Dashboard(program, folder)
    try:
        click_through(dashboard, folder, browser)
    finally:
        dashboard.end()


def click_through(dashboard, folder, browser):
    without = browser.chromium.new_context().new_page()
    check(without.goto(dashboard.address.split("?")[0]).status == 401, "the page was given without its token")

    page = browser.page(dashboard.address, 1280, 1000)
    check("token" not in page.url, "the address shows the token")
    # There is no run yet, so it begins with the form. Turning the budget changes the plan.
    verdict(page, "It fits")
    budget = page.text_content("#host-shown")
    slide(page, 0.02)
    verdict(page, "It does not fit")
    check(page.text_content("#host-shown") != budget and page.locator("#go").is_disabled(), "the budget was not turned")
    check("hint:" in page.text_content("#draft"), "what would fit is not said")
    slide(page, 0.5)
    verdict(page, "It fits")
    page.screenshot(path=HERE / "dashboard-start.png")
    start(page, "before", 900)
    state(page, "running")
    until(page, "data.get('before').points.step.length > 60")
    page.screenshot(path=HERE / "dashboard.png", full_page=False)

    cpu, began = dashboard.cpu_seconds(), time.monotonic()
    page.wait_for_timeout(10_000)
    share = (dashboard.cpu_seconds() - cpu) / (time.monotonic() - began)
    print(f"with a page open, the dashboard takes {100 * share:.2f} % of a processor")

    page.click("#stop")
    state(page, "stopped")
    stopped = page.evaluate("data.get('before').status.step")
    page.click("#resume")
    until(page, "(step) => data.get('before')?.status?.step > step", stopped)
    state(page, "finished")
    check(page.evaluate("data.get('before').points.step.length") == 900, "not every update is there once")
    check(page.locator("td.good").count() > 0, "answers to held-out prompts are not shown")

    # Another one with half the sequences in an update, then both side by side.
    page.click("#new")
    page.fill("#sequences", "16")
    start(page, "after", 300)
    state(page, "finished")
    page.click("button.run:has-text('before')")
    page.wait_for_selector("#comparison")
    until(page, "document.querySelectorAll('#comparison th').length === 4")
    # The one that was chosen first is what it was before.
    page.click("button.run:has-text('after')")
    page.wait_for_selector("#comparison", state="detached")
    page.click("button.run:has-text('after')")
    page.wait_for_selector("#comparison")
    check(page.text_content("#comparison tr:first-child") == "RunbeforeafterChange", "before does not stand before after")
    page.evaluate(DRAWN)
    page.screenshot(path=HERE / "dashboard-compare.png")

    wanted = dashboard.address + "#run=before"
    dark = browser.page(wanted, 1280, 1500, color_scheme="dark")
    state(dark, "finished")
    dark.wait_for_timeout(1500)
    dark.screenshot(path=HERE / "dashboard-dark.png")
    phone = browser.page(wanted, 390, 844, **PHONE)
    state(phone, "finished")
    phone.wait_for_timeout(1000)
    fits_phone(phone)
    phone.screenshot(path=HERE / "dashboard-phone.png", full_page=False)
    phone.tap("#new")
    verdict(phone, "It fits")
    fits_phone(phone)

    # A long run is there at once.
    long = folder / "runs" / "long"
    long.mkdir()
    line = lambda n: json.dumps({"step": n, "loss": 2 + 8 / n, "lr": 1e-4, "tokens_per_s": 900 + n % 7, "step_ms": 100, "host_rss_bytes": 2**30})
    (long / "metrics.jsonl").write_text("".join(line(n) + "\n" for n in range(1, 100_001)))
    began = time.monotonic()
    page = browser.page(dashboard.address + "#run=long", 1280, 1000)
    until(page, "data.get('long')?.updates === 100000")
    page.evaluate(DRAWN)
    print(f"100000 updates: there in {time.monotonic() - began:.2f} s")


# The sixteen colours of a terminal as the reader of its text calls them, and as they are shown.
COLOURS = dict(zip(
    "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff".split(),
    "1d2229 e06666 79c267 d6b14a 6f9be0 b184d2 4fc0c0 a9b1bd 5f6875 ff8a80 9be08a f0d98a 9cc0f5 d7a8f0 8fe3e3 ffffff".split()))


def terminal_page(screen):
    rows = []
    for y in range(screen.lines):
        cells = (screen.buffer[y][x] for x in range(screen.columns))
        # Cells of one width: letters that the font lacks come from one with other measures.
        spans = (f'<i style="color:#{COLOURS.get(c.fg, "e6e9ee")};'
                 f'font-weight:{600 if c.bold else 400}">{html.escape(c.data)}</i>' for c in cells)
        rows.append(f"<div>{''.join(spans)}</div>")
    style = ("body{margin:0;background:#111418}main{padding:14px;width:max-content}div{display:flex;height:16px}"
             "i{font:normal 14px/16px 'DejaVu Sans Mono',monospace;white-space:pre;width:8.4px;height:16px;overflow:visible}")
    return f"<!doctype html><meta charset=utf-8><style>{style}</style><main>{''.join(rows)}</main>"


def watch(program, folder, browser, columns=150, lines=44):
    """What `watch` puts on a terminal of that size, while a run goes on."""
    train = [program, "train", "--out", "runs/watched", "--quiet", "--steps", "100000", "--device", "cpu"]
    run = subprocess.Popen(train, cwd=folder, stdout=subprocess.DEVNULL)
    metrics = folder / "runs" / "watched" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 250):
        check(run.poll() is None, "the run ended")
        time.sleep(0.2)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="xterm-256color")
        os.environ.pop("NO_COLOR", None)
        os.execv(program, [str(program), "watch", "runs/watched"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    os.set_blocking(terminal, False)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        try:
            stream.feed(os.read(terminal, 65536))
        except BlockingIOError:
            time.sleep(0.05)
    check(any("running" in line for line in screen.display), "\n".join(screen.display))
    os.write(terminal, b"q")
    check(os.waitpid(pid, 0)[1] == 0, "`watch` did not leave")
    check(run.poll() is None, "leaving ended the run")
    subprocess.run([program, "stop", "runs/watched", "--quiet"], cwd=folder, check=True)
    run.wait()
    page = browser.chromium.new_page()
    page.set_content(terminal_page(screen))
    page.locator("main").screenshot(path=HERE / "watch.png")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    chromium = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = pathlib.Path(folder)
        browser = Browser(playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]))
        only = os.environ.get("ONLY", "pictures clicks watch").split()
        for part in (pictures, clicks, watch):
            if part.__name__ in only:
                part(program, folder, browser)
        browser.chromium.close()


main()
