"""The digest of a run's prompts: what it tells apart, how far it reads, and what it leaves alone."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from batchbridge.meaning.prompt_digest import PromptColumn, digest_of, has_rows, sampled, unlike

TEXTS = [f"prompt {number}" for number in range(3000)]


def shuffled(seed: int) -> list[str]:
    return random.Random(seed).sample(TEXTS, len(TEXTS))


def test_the_same_prompts_have_the_same_digest_and_it_is_plain_json() -> None:
    digest = digest_of(TEXTS)
    assert unlike(digest, digest_of(list(TEXTS))) is None
    assert json.loads(json.dumps(digest)) == digest
    assert list(digest["sampled"]) == ["16", "256"]
    assert unlike(digest_of([]), digest_of([])) is None


@pytest.mark.parametrize("seconds", [5.0, 0.0])
def test_another_order_another_text_and_another_number_differ(seconds: float) -> None:
    """Also where the time suffices for the smallest sample alone."""
    digest = digest_of(TEXTS, seconds)
    assert (digest["whole"] is None) == (not seconds)
    for others in (shuffled(1), [text.upper() for text in TEXTS], TEXTS[::-1]):
        assert "other texts, or the same in another order" in (unlike(digest, digest_of(others, seconds)) or "")
    assert unlike(digest, digest_of(TEXTS[:-1], seconds)) == "3000 and 2999 prompts"


def test_one_prompt_that_changed_is_noticed_where_all_are_read() -> None:
    for place in range(0, len(TEXTS), 397):
        others = [*TEXTS[:place], "another", *TEXTS[place + 1 :]]
        assert unlike(digest_of(TEXTS), digest_of(others)) is not None


def test_what_both_have_is_compared_and_the_sample_is_said() -> None:
    short, long = digest_of(TEXTS, 0.0), digest_of(TEXTS)
    assert unlike(short, long) is None
    assert unlike(short, digest_of(shuffled(2))) == "a sample of 16 prompts: other texts, or the same in another order"
    assert "by a sample of 16 of 3000 prompts' texts, as all take more than 5 s" in sampled(short)


def test_messages_count_by_their_words_and_pictures_by_their_kind() -> None:
    class Picture:
        """No JSON, and it must not be looked into."""

    def talk(word: str, picture: Any) -> list[Any]:
        return [[{"role": "user", "content": [{"type": "text", "text": word}, {"image": picture}]}]]

    assert unlike(digest_of(talk("a", Picture())), digest_of(talk("a", Picture()))) is None
    assert unlike(digest_of(talk("a", Picture())), digest_of(talk("b", Picture()))) is not None
    assert unlike(digest_of(["a", "bc"]), digest_of(["ab", "c"])) is not None


class Rows:
    """A data set whose second column cannot be read."""

    def __init__(self, names: tuple[str, ...] = ("prompt", "image")) -> None:
        self.names = names

    def __len__(self) -> int:
        return 5

    def select_columns(self, names: list[str]) -> Rows:
        return Rows(tuple(names))

    def __getitem__(self, place: Any) -> dict[str, Any]:
        assert self.names == ("prompt",), "the picture was decoded"
        return {"prompt": TEXTS[:5][place]}


def test_no_other_column_is_read() -> None:
    assert unlike(digest_of(PromptColumn(Rows(), "prompt")), digest_of(TEXTS[:5])) is None
    assert has_rows(PromptColumn(Rows(), "prompt"))
    assert not has_rows(PromptColumn(iter(TEXTS), "prompt")), "a stream has no places to look at"
    plain = [{"question": text} for text in TEXTS[:5]]
    assert unlike(digest_of(PromptColumn(plain, "question")), digest_of(TEXTS[:5])) is None
