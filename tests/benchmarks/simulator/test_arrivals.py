from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulator.arrivals import Arrivals, TraceError, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOONCAKE = "timestamp_ms,input_length,output_length\n"


def written(folder: Path, name: str, text: str) -> Path:
    (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def test_times_are_read_to_the_last_digit_and_count_from_the_first(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 23:59:59.9799600,4808,10\n2023-11-17 00:00:00,17,8\n2023-11-17 00:00:01.0000001,9,8\n"
    trace = read_trace(written(tmp_path, "azure_llm_2023_code", text), "azure_llm_2023_code")
    assert trace.at_s == pytest.approx((0.0, 0.02004, 1.0200401), abs=1e-6)
    assert trace.lengths == (4808, 17, 9)


def test_lines_out_of_order_keep_their_lengths(tmp_path: Path) -> None:
    text = MOONCAKE + "2000,20,1\n500,5,1\n1000,10,1\n"
    trace = read_trace(written(tmp_path, "mooncake_synthetic", text), "mooncake_synthetic")
    assert (trace.at_s, trace.lengths) == ((0.0, 0.5, 1.5), (5, 10, 20))


def test_times_that_were_rounded_are_spread_over_the_step_by_seed_and_that_is_said(tmp_path: Path) -> None:
    lines = "".join(f"{3000 * (number // 50)},{number + 1},1\n" for number in range(200))
    folder = written(tmp_path, "mooncake_conversation", MOONCAKE + lines)
    trace = read_trace(folder, "mooncake_conversation", seed=7)
    assert trace == read_trace(folder, "mooncake_conversation", seed=7)
    assert trace.at_s != read_trace(folder, "mooncake_conversation", seed=8).at_s
    assert len(set(trace.at_s)) == 200
    gaps_s = [later - sooner for sooner, later in zip(trace.at_s, trace.at_s[1:], strict=False)]
    assert min(gaps_s) >= 0
    assert max(gaps_s) < 1.0  # was 3
    by_time = dict(zip(trace.lengths, trace.at_s, strict=True))
    for length in (1, 51, 101, 151):  # none left its step
        assert 0 <= by_time[length] - 3.0 * (length // 50) + 3.0 <= 6.0
    assert "3 s that they were rounded to (seed 7)" in trace.done


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2023-11-16 18:17:03.97,0,1", "line 3: ContextTokens is '0', allowed: 1 to 10000000"),
        ("2023-11-16 18:17:03.97,-5,1", "line 3: ContextTokens is '-5'"),
        ("2023-11-16 18:17:03.97,1.5,1", "line 3: ContextTokens is '1.5'"),
        ("2023-11-16 18:17:03.97,99999999999999999999999,1", "line 3: ContextTokens is '9999"),
        ("2023-11-16 18:17:03.97", "line 3: ContextTokens is None"),
        ("yesterday,5,1", "line 3: TIMESTAMP is 'yesterday', allowed: a time"),
        ("2023-11-16 18:17:03.9x,5,1", "line 3: TIMESTAMP is '2023-11-16 18:17:03.9x'"),
        ("2023-13-16 18:17:03,5,1", "line 3: TIMESTAMP is '2023-13"),
    ],
)
def test_a_malformed_line_is_named_with_field_and_what_is_allowed(tmp_path: Path, line: str, said: str) -> None:
    folder = written(tmp_path, "azure_llm_2023_conv", f"{AZURE}2023-11-16 18:17:03.97,7,1\n{line}\n")
    with pytest.raises(TraceError) as caught:
        read_trace(folder, "azure_llm_2023_conv")
    assert said in str(caught.value)
    assert "azure_llm_2023_conv.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"), [("nan,5,1", "'nan'"), ("-1,5,1", "'-1'"), ("1e300,5,1", "'1e300'"), (",5,1", "''")]
)
def test_a_time_that_is_none_is_named(tmp_path: Path, line: str, said: str) -> None:
    folder = written(tmp_path, "mooncake_synthetic", f"{MOONCAKE}1,5,1\n{line}\n")
    with pytest.raises(TraceError, match=rf"line 3: timestamp_ms is {said}"):
        read_trace(folder, "mooncake_synthetic")


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the trace is 'other', allowed: azure_llm_2023_code, "):
        read_trace(tmp_path, "other")
    with pytest.raises(TraceError, match=r"azure_llm_2023_code\.csv cannot be read: No such file"):
        read_trace(tmp_path, "azure_llm_2023_code")
    written(tmp_path, "azure_llm_2023_code", "a,b\n1,2\n")
    with pytest.raises(TraceError, match="line 1: the columns are a, b, TIMESTAMP and ContextTokens missing"):
        read_trace(tmp_path, "azure_llm_2023_code")
    written(tmp_path, "azure_llm_2023_code", f"{AZURE}2023-11-16 18:17:03.97,7,1\n")
    with pytest.raises(TraceError, match="has 1 requests, allowed: 2 or more"):
        read_trace(tmp_path, "azure_llm_2023_code")
    (tmp_path / "azure_llm_2023_code.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="no CSV in UTF-8"):
        read_trace(tmp_path, "azure_llm_2023_code")


def test_lengths_are_scaled_so_that_one_in_a_hundred_is_clipped_and_time_by_a_factor() -> None:
    trace = Arrivals("t", tuple(map(float, range(1000))), tuple(range(1, 1001)))
    within = trace.within(100).faster(2.0)
    assert max(within.lengths) == 100
    assert within.lengths[:10] == (1, 1, 1, 1, 1, 1, 1, 1, 1, 2)
    assert within.lengths.count(100) == 10 + 10  # 981 to 990 fit, the ten above are clipped
    assert within.at_s[-1] == 499.5
    assert within.done.endswith("lengths / 9.9 and clipped at 100 (1.0%), 2 times as fast")
    assert trace.within(5000).lengths == trace.lengths  # never stretched


def test_halves_are_the_requests_before_and_after_the_middle() -> None:
    first, second = Arrivals("t", (0.0, 1.0, 5.0, 7.0), (1, 2, 3, 4)).halves()
    assert (first.at_s, first.lengths) == ((0.0, 1.0), (1, 2))
    assert (second.at_s, second.lengths) == ((0.0, 2.0), (3, 4))
