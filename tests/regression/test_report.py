from gc25d.records import to_json
from gc25d.regression.refs import Verdict
from gc25d.regression.report import WIDTH, report_json, verdict_table

OK = Verdict("wan/finetune", "ok", 1.0, 1.01, 0.0099, 0.1, 1e-7)
OUT = Verdict("wan/dmd2", "out", 2.0, 1.0, 1.0, 0.1, 0.0)
MISSING = Verdict("cosmos/finetune", "missing", 3.0, None, None, 0.1, 0.0)
STALE = Verdict("wan/kd", "stale", 3.0, None, None, 0.1, 0.0)


def row(text: str, cell: str) -> str:
    (line,) = [line for line in text.splitlines() if cell in line]
    return line


def test_the_table_shows_every_cell_and_its_outcome():
    text = verdict_table("CPU", [OK, OUT, MISSING, STALE], strict=False)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "9.90e-03" in row(text, "wan/finetune")
    assert "1.01" in row(text, "wan/finetune")
    assert "OUT OF TOLERANCE" in row(text, "wan/dmd2")
    assert "skipped: nothing recorded" in row(text, "cosmos/finetune")
    assert "skipped: recorded for another fixture" in row(text, "wan/kd")
    assert "FAILED" not in text


def test_strict_shows_skips_as_failures():
    text = verdict_table("CPU", [OK, MISSING], strict=True)
    assert "FAILED" in text
    assert "FAILED" not in row(text, "wan/finetune")


def test_the_report_is_strict_json_and_says_whether_it_passed():
    lenient = report_json("CPU", [OK, MISSING], [], strict=False)
    assert lenient["passed"] is True
    assert lenient["cells"]["cosmos/finetune"]["relative_error"] is None
    strict = report_json("CPU", [OK, MISSING, STALE], [], strict=True)
    assert strict["failed"] == ["cosmos/finetune", "wan/kd"]
    assert strict["passed"] is False
    assert report_json("CPU", [OK, OUT], [], strict=False)["failed"] == ["wan/dmd2"]
    assert report_json("CPU", [OK], ["norm is nan"], strict=False)["passed"] is False
    to_json(strict)
