"""What the producer warp of attn_bwd_hopper.py copies, for which tiles."""

from attn_bwd_tiles import announce, announce_end, block_of, next_turn, place_of_row, span_of, tile_of
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def produce_tile(tile, told, done, q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call,
                 BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Copies the told-th tile's keys and values, and block by block the rows that see them, in the consumers' order.
    Returns how many blocks are done with these."""
    span = span_of(tile, call, BLOCK_M, BLOCK_N)
    announce(told, tile, span, call, shared)
    mbarrier.wait(shared.k_empty, (told & 1) ^ 1)
    mbarrier.expect(shared.keys_full, 2 * (k_desc.nbytes_per_cta + v_desc.nbytes_per_cta))
    key = tile.start_k + tile.first
    for half in gl.static_range(2):
        at = [tile.batch_k, tile.head_kv, key + 64 * half, 0]
        tma.async_load(k_desc, at, shared.keys_full, shared.k.index(half))
    mbarrier.wait(shared.v_empty, (told & 1) ^ 1)
    for half in gl.static_range(2):
        at = [tile.batch_k, tile.head_kv, key + 64 * half, 0]
        tma.async_load(v_desc, at, shared.keys_full, shared.v.index(half))
    gdc_wait()
    gdc_launch_dependents()
    for i in range((span.end - span.begin) * call.heads_per_kv):
        stage = done % STAGES
        phase = (done // STAGES & 1) ^ 1
        member, block = block_of(i, span, call, call.ordered)
        head = tile.head_kv * call.heads_per_kv + member
        row = tile.start_q + block * BLOCK_M
        place = place_of_row(tile, head, block * BLOCK_M, call)
        mbarrier.wait(shared.q_empty.index(stage), phase)
        mbarrier.expect(shared.q_full.index(stage), q_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
        tma.async_load(terms_desc, [place], shared.q_full.index(stage), shared.lse.index(stage))
        tma.async_load(q_desc, [tile.batch_q, head, row, 0], shared.q_full.index(stage), shared.q.index(stage))
        mbarrier.wait(shared.dout_empty.index(stage), phase)
        mbarrier.expect(shared.dout_full.index(stage), dout_desc.nbytes_per_cta + terms_desc.nbytes_per_cta)
        delta_place = place + call.heads * call.places
        tma.async_load(terms_desc, [delta_place], shared.dout_full.index(stage), shared.delta.index(stage))
        tma.async_load(dout_desc, [tile.batch_q, head, row, 0], shared.dout_full.index(stage), shared.dout.index(stage))
        done += 1
    return done


@gluon.jit
def produce(q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, taken_ptr, call, BLOCK_M: gl.constexpr,
            BLOCK_N: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Copies what is wanted of all tiles that this program takes."""
    if call.ordered:
        gdc_wait()  # until then, the number of turns taken is what the last call left
        turn = next_turn(taken_ptr, call)
    else:
        turn = gl.program_id(0)
    told = 0
    done = 0
    while turn < call.tiles:
        tile = tile_of(turn, call, BLOCK_N)
        if tile.first < tile.rows_k:
            done = produce_tile(
                tile, told, done, q_desc, dout_desc, k_desc, v_desc, terms_desc, shared, call, BLOCK_M, BLOCK_N,
                STAGES,
            )  # fmt: skip
            told += 1
        # This program's end is a reason for the next kernel to begin, which reads what the one before it writes.
        gdc_wait()
        turn = next_turn(taken_ptr, call)
    announce_end(told, shared)
