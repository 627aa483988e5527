"""One message of every kind, with every field away from its default."""

from __future__ import annotations

from relevo.core.baton import Baton, PrefillFacts, SampledToken, SampleState
from relevo.core.events import ExpertLoads, StepCosts, StepCounters, TokenOutput, WorkerLoad
from relevo.core.handoff import Ability, KVEndpoint, KVPath, KVSite, Link, Reach
from relevo.core.ids import RequestId, WorkerId
from relevo.core.kv import KVGroup, KVLayout, Reservation
from relevo.core.request import EngineRequest, FinishReason, SamplingParams
from relevo.core.role import UNIFIED, Role, RoleChange
from relevo.wire import messages as wire

RID, WID = RequestId("réquest-1"), WorkerId("d0")
SAMPLING = SamplingParams(
    max_tokens=7,
    seed=2**64 - 1,
    n=2,
    temperature=0.5,
    top_k=3,
    top_p=0.25,
    min_p=0.125,
    frequency_penalty=-1.5,
    presence_penalty=1.5,
    repetition_penalty=1.25,
    logit_bias={5: -100.0, 0: 2.5},
    num_logprobs=2,
    stop_token_ids=(1, 2),
    min_tokens=1,
    ignore_eos=True,
)
REQUEST = EngineRequest(
    request_id=RID,
    prompt_token_ids=(1, 2, 3),
    sampling=SAMPLING,
    eos_token_ids=(9,),
    salt=b"\x00\xff",
    priority=-1,
    arrived_at_ns=2**62,
    session=b"s\x00",
)
SAMPLE = SampleState(sample_index=1, output_token_ids=[4, 5], finish_reason=FinishReason.STOP)
RESERVATION = Reservation(
    request_id=RID,
    worker_id=WID,
    epoch=3,
    block_size=16,
    block_ids=(7, 1),
    generations=(0, 2**63),
    num_hit_tokens=16,
)
LAYOUT = KVLayout("hash", "bfloat16", 16, (KVGroup.full(range(2), 1, 8),), tensor_parallel_size=2)
LOAD = WorkerLoad(
    num_running=1,
    num_free_blocks=5,
    costs=StepCosts(base_s=0.5, per_token_s=0.25, per_kv_token_s=0.125),
    role=RoleChange(UNIFIED, 3),
)
COUNTERS = StepCounters(num_steps=9, transferred_bytes=2**40, transfer_s=1.5, busy_s=0.25, product_ops=1e21)
FACTS = PrefillFacts(worker_id=WID, num_prompt_tokens=3, num_cached_tokens=2, queue_s=0.5, prefill_s=0.25, num_chunks=2)
TOKEN = SampledToken(5, -0.5, ((5, -0.5), (6, -1.5)))
OUTPUT = TokenOutput(RID, 1, (TOKEN, SampledToken(6)), FinishReason.LENGTH, FACTS)

SITE = KVSite(box_id="b", arena_id="1:2", endpoints=(KVEndpoint("shm", "shm:1:2", Reach.ARENA),))
HELLO = wire.Hello(
    wire.PROTOCOL_VERSION, WID, 3, 1234, "decode", LAYOUT, "m", 257, 4096, SITE, LOAD, frozenset({Ability.PREFILL})
)

SAMPLES = (
    wire.Submit(REQUEST, (SAMPLE,)),
    wire.Reserve(REQUEST),
    wire.Prefill(REQUEST, RESERVATION, KVPath("tcp", "tcp:h:1", Link.NETWORK), 16),
    wire.SealBlocks(RID, 16),
    wire.StartDecode(Baton(request_id=RID, samples=(SAMPLE,), num_sealed_tokens=3)),
    wire.ComputeReserved(RID, (SAMPLE,)),
    wire.Abort(RID, True),
    wire.Release(RID),
    wire.Fence(WID, 3, 2),
    wire.Drain(),
    wire.SetEpoch(2**47),
    wire.SetRole(RoleChange(Role(3, 1), 2**40, (0, 5))),
    wire.FollowCache(),
    wire.Ping(2**63),
    HELLO,
    wire.Reserved(RESERVATION),
    wire.Refused(RID, "invalid_request", "why"),
    wire.Sealed(RID, 16),
    wire.PrefillDone(RID, 16, 4096, 0.5),
    wire.StepOutputs((OUTPUT,), LOAD, COUNTERS),
    wire.RequestFailed(RID, "step_failed", "why"),
    wire.Dropped(RID),
    wire.Preempted((RID,)),
    wire.Fenced(WID, 3, 2),
    wire.Orphans((RID,)),
    wire.ExpertReport(ExpertLoads(layers=(1, 3), tokens=((2**40, 0), (1, 2)), ranks=((2**40, 0), (1, 2)))),
    wire.LoadReport(LOAD, COUNTERS),
    wire.CacheEvents(7, (b"\x00" * 16, b"\xff" * 16), (b"ab" * 8,)),
    wire.CacheSnapshot(7, (b"\x00" * 16,)),
    wire.Leaving(),
    wire.Pong(1),
)
