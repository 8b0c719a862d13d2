"""The page in a browser: it follows what is written, and names stay names."""

import json
import shutil

import pytest

from pages.watch.visits import EVIL, TAGS, Visit, add_rows, fail, finish, new_study, row, serving
from spiritlevel_lab.population.executors import local

pytestmark = pytest.mark.sampled(4)  # the others at night


def points(number: int) -> str:
    drawn = "document.querySelectorAll('#scatter .scatterlayer .point').length"
    return f"{drawn} === {number}"


def test_a_study_is_followed(browser, tmp_path):
    folder = tmp_path / "study"
    with serving(folder) as served:
        visit = Visit(browser, served, viewport={"width": 1280, "height": 800})
        visit.wait_text("#why", "nothing at")
        with new_study(folder, grid={"lr": [0.1, 0.01]}, seeds=2) as store:
            visit.wait_text("#progress", "0 of 4")
            for i in range(2):
                finish(store, i, measures=("head.trace", "norms.weight"))
                visit.wait_text("#progress", f"{i + 1} of 4")
                visit.wait(points(i + 1))
            assert visit.page.locator("#failures").is_hidden()
            fail(store, "the disk is full")
            visit.wait_text("#failures", "lr 0.1, seed 1: the disk is full")
            local.run_here(store)  # the last one is trained in earnest
            visit.wait_text("#progress", "3 of 4")
            visit.wait_text("#progress", "all have ended")
            [last] = [each for each in store.rows("epochs") if each["epoch"] == 2][-1:]
            shown = visit.page.locator("#runs tbody tr").first.inner_text().split("\t")
            assert [cell.strip() for cell in shown[:4]] == ["0.01", "1", "done", "2"]
            assert float(shown[4]) == pytest.approx(last["train_loss"], rel=1e-3)
        visit.page.get_by_label("measure", exact=True).select_option("norms.weight")
        visit.wait_text("#scatter .xtitle", "norms.weight")
        visit.page.get_by_role("button", name="log").click()
        visit.page.get_by_role("button", name="accuracy").click()
        visit.wait_text("#curves .ytitle", "accuracy")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 1280
        shutil.rmtree(folder)
        visit.wait_text("#why", "nothing at")
        visit.check()
        visit.page.close()


@pytest.mark.nightly
def test_a_monitor_is_followed_on_a_phone(browser, tmp_path):
    path = tmp_path / "run.jsonl"
    with serving(tmp_path) as served:
        phone = {"width": 375, "height": 700}
        visit = Visit(browser, served, viewport=phone, color_scheme="light")
        visit.wait_text("#why", "holds neither")
        add_rows(path, row(1, 2.5))
        visit.wait_text(".monitor", "2.5")
        add_rows(path, row(2, 3.75), row(3, None, status="failed", text="the loss is nan"))
        visit.wait_text(".monitor .errors", "step 3, epoch 0: the loss is nan")
        drawn = "[...document.querySelectorAll('.monitor .trace')].map(t => "
        drawn += "t.querySelectorAll('.point').length).join()"
        visit.wait(f"{drawn} === '2,1'")  # two values, one mark
        visit.page.get_by_role("button", name="epochs").click()
        visit.wait_text(".monitor .xtitle", "epoch")
        # the colours are the reader's choice
        paper = "getComputedStyle(document.querySelector('.live .main-svg')).backgroundColor"
        page = "getComputedStyle(document.body).backgroundColor"
        assert visit.page.evaluate(paper) == visit.page.evaluate(page) == "rgb(255, 255, 255)"
        visit.page.get_by_role("button", name="Dark colours").click()
        visit.wait(f"{page} !== 'rgb(255, 255, 255)' && {paper} === {page}")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 375
        visit.check()
        # a server that does not answer is told of
        visit.page.route("**/state.json*", lambda route: route.abort())
        visit.wait_text("#pulse", "is `spiritlevel watch` still running?")
        path.write_text("")
        add_rows(path, row(1, 9.25))  # cut and written anew
        visit.page.unroute("**/state.json*")
        visit.wait_text(".monitor", "9.25")
        visit.wait(f"{drawn} === '1'")
        visit.wait_text("#pulse", "live")
        visit.page.close()


def test_names_do_nothing_but_appear(browser, tmp_path):
    with new_study(
        tmp_path, name=EVIL, description=EVIL, grid={"model.hidden": [4, 8]}, seeds=1
    ) as store:
        finish(store, 1, measures=(TAGS, "head.trace"))
        fail(store, EVIL)
        store._connection.execute("UPDATE runs SET axes = ?", (json.dumps({TAGS: TAGS}),))
        definition = {"name": EVIL, "description": EVIL, "grid": {TAGS: [TAGS]}}
        store._connection.execute("UPDATE meta SET value = ?", (json.dumps(definition),))
        bad = {"measure": EVIL, "status": "failed", "text": EVIL}
        add_rows(tmp_path / f"{EVIL}.jsonl", row(1, measure=EVIL), row(2, **bad))
        with serving(tmp_path) as served:
            visit = Visit(browser, served)
            visit.page.get_by_label("measure", exact=True).wait_for()
            visit.page.get_by_label("measure", exact=True).select_option(TAGS)
            places = ["#title", "#lead", "#failures", ".monitor h2", ".monitor h3"]
            places += [".monitor td", ".monitor .errors"]
            for place in places:
                visit.wait_text(place, EVIL)
            for place in ("#scatter .legendtext", "#scatter .xtitle", "#runs th", "#runs td"):
                visit.wait_text(place, TAGS)
            visit.page.locator("#scatter .point").first.hover(force=True)
            visit.wait_text("#scatter .hoverlayer", f"{TAGS} {TAGS}")
            assert visit.page.title().startswith(EVIL)
            assert visit.page.locator("img").count() == 0
            visit.check()
            visit.page.close()


def test_texts_stand_out_from_their_background(browser, tmp_path):
    """WCAG AA: 4.5 to 1 for every text on the page, in both themes."""
    with new_study(tmp_path) as store:
        finish(store, 1)
        fail(store, "why")
        add_rows(tmp_path / "run.jsonl", row(1), row(2, None, status="failed", text="why"))
        with serving(tmp_path) as served:
            visit = Visit(browser, served, color_scheme="light")
            visit.wait_text(".monitor .errors", "why")
            visit.wait(points(1))
            for other in ("Dark colours", "Light colours"):
                found = visit.page.evaluate(CONTRASTS)
                assert len(found) > 50
                assert [each for each in found if each[1] < 4.5] == []
                visit.page.get_by_role("button", name=other).click()
            visit.page.close()


# Of every element with a text of its own: the text and its contrast with what is behind it.
CONTRASTS = """() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => {
    const [r, g, b] = numbers(colour).map(v => v / 255)
      .map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((numbers(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const own = e => [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  return [...document.querySelectorAll('body *')]
    .filter(e => own(e) && e.checkVisibility() && !e.closest('noscript')).map(e => {
      const style = getComputedStyle(e);
      const [a, b] = [e instanceof SVGElement ? style.fill : style.color, behind(e)].map(light);
      return [e.textContent.trim().slice(0, 40), (Math.max(a, b) + .05) / (Math.min(a, b) + .05)];
    });
}"""
