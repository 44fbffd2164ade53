from bench_worker.workload.prefix import BLOCK_TOKENS, PrefixCache


def test_blocks_are_found_from_the_beginning_only():
    cache = PrefixCache()
    for block in (1, 2, 4):
        assert cache.add(block)
    assert cache.found([1, 2, 3, 4]) == [1, 2]
    assert cache.found([3, 1]) == []


def test_a_block_takes_room_once_however_many_use_it():
    cache = PrefixCache()
    cache.add(1)
    cache.take([1])
    assert (cache.used_tokens, cache.idle_tokens) == (BLOCK_TOKENS, 0)
    cache.release([1])
    assert (cache.used_tokens, cache.idle_tokens) == (BLOCK_TOKENS, 0)
    cache.release([1])
    assert (cache.used_tokens, cache.idle_tokens) == (0, BLOCK_TOKENS)
    assert cache.woken_tokens([1, 2]) == BLOCK_TOKENS
    cache.take([1])
    assert (cache.used_tokens, cache.idle_tokens) == (BLOCK_TOKENS, 0)


def test_a_second_copy_stays_its_requests_own():
    cache = PrefixCache()
    assert cache.add(1)
    assert not cache.add(1)
    cache.release([1])
    assert not cache.add(1)


def test_what_was_not_used_for_longest_leaves_first_and_the_end_of_a_prompt_before_its_beginning():
    cache = PrefixCache()
    for block in (1, 2, 3):
        cache.add(block)
    cache.release([3])
    cache.release([1, 2])
    cache.shrink(2 * BLOCK_TOKENS)
    assert [cache.found([block]) for block in (1, 2, 3)] == [[1], [2], []]
    cache.shrink(2 * BLOCK_TOKENS - 1)
    assert [cache.found([block]) for block in (1, 2)] == [[1], []]
