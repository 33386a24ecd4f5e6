"""Makes the images beside this file: real plans, drawn by the program, photographed in Chromium.

    pip install playwright && python3 docs/images/make.py target/release/plimsoll [/usr/bin/chromium]

Also says how long a plan of some tens of thousands of buffers takes to open, and how many frames a second zooming has.
"""
import pathlib, subprocess, sys, tempfile, time

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


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    chromium = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        folder = pathlib.Path(folder)

        def plan(name, text, *flags):
            (folder / f"{name}.yaml").write_text(text)
            command = [program, "plan", f"{name}.yaml", "--quiet", "--html", f"{name}.html", *flags]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            return (folder / f"{name}.html").as_uri()

        card = ["--device", "RTX 4090", "--gpu", "22GiB"]
        single = plan("mistral-7b-lora", MISTRAL, *card)
        beside = plan("mistral-7b", MISTRAL, *card, "--beside", "lowest")
        deep = plan("deep", DEEP, "--device", "H100", "--gpu", "30GiB")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def page(address, width, height, **settings):
            shown = browser.new_context(viewport={"width": width, "height": height}, **settings).new_page()
            shown.on("pageerror", lambda error: sys.exit(f"the page failed: {error}"))
            shown.goto(address)
            shown.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            return shown

        page(single, 1280, 900).screenshot(path=HERE / "plan.png")
        page(beside, 1280, 1000, color_scheme="dark").screenshot(path=HERE / "plan-beside.png")
        began = time.monotonic()
        shown = page(deep, 1400, 1000)
        seconds = time.monotonic() - began
        buffers = shown.evaluate("plots[0].timeline.buffers.length")
        print(f"{buffers} buffers: open in {seconds:.2f} s, {shown.evaluate(ZOOMING):.0f} frames/s while zooming")
        phone = page(single, 390, 844, is_mobile=True, has_touch=True, device_scale_factor=2)
        assert phone.evaluate("document.documentElement.scrollWidth") <= 390, "wider than a phone"
        browser.close()


main()
