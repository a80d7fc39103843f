"""All exercises, in the order of the book."""

from pdtlib.exercises.exercise import Exercise

BROWSER_LIMIT_S = 20.0
RANKS_LIMIT_S = 240.0


def _browser(id: str, title: str, entry: str) -> Exercise:
    return Exercise(id=id, title=title, entry=entry, runs_in="browser", time_limit_s=BROWSER_LIMIT_S)


def _ranks(id: str, title: str, entry: str) -> Exercise:
    return Exercise(id=id, title=title, entry=entry, runs_in="ranks", time_limit_s=RANKS_LIMIT_S)


EXERCISES = {
    exercise.id: exercise
    for exercise in (
        _browser("ch01-param-count", "Count the parameters of GPT and Llama", "param_count"),
        _browser("ch01-largest-batch", "The largest micro-batch that fits", "largest_micro_batch"),
        _browser("ch02-ring-all-reduce", "Ring all-reduce from send and receive", "all_reduce"),
        _browser("ch02-token-mean", "The mean over tokens, however the batch is cut", "rank_gradient"),
        _ranks("ch02-ring-all-reduce-torch", "Ring all-reduce on real processes", "ring_all_reduce"),
        _ranks("ch02-bucketed-ddp", "Data parallelism with buckets and overlap", "BucketedDDP"),
        _ranks("ch02-zero1", "ZeRO-1: shard the optimizer", "Zero1Adam"),
        _ranks("ch02-zero2", "ZeRO-2: shard the gradients", "Zero2Adam"),
        _ranks("ch02-zero3", "ZeRO-3: shard the parameters", "zero3_linear"),
        _browser("ch03-gqa-heads", "Heads of a rank, with grouped keys and values", "rank_heads"),
        _browser("ch03-bias-once", "A row-cut layer whose bias counts once", "row_linear"),
        _ranks("ch03-column-row-mlp", "An MLP cut by columns and rows, with f and g", "parallel_mlp"),
        _ranks("ch03-vocab-cross-entropy", "The loss of logits that nobody has whole", "vocab_cross_entropy"),
        _browser("ch04-emit-schedules", "Emit GPipe, 1F1B and interleaved 1F1B", "program"),
        _browser("ch04-send-order", "Sends and receives that cannot deadlock", "with_messages"),
        _browser("ch04-memory-cap", "The shortest schedule under a memory cap", "shortest"),
        _browser("ch05-rank-coordinates", "From a rank to its coordinates and groups", "coordinates"),
        _browser("ch05-placement", "The order of ranks with the least traffic between nodes", "best_order"),
        _browser("ch05-grad-norm", "The norm of a gradient that lies on many ranks", "grad_norm"),
        _browser("ch05-tied-embeddings", "Tied embeddings on two stages", "tied_gradient"),
        _browser("ch06-activation-terms", "What a layer keeps, term by term", "saved_terms"),
        _browser("ch06-norm-gradient", "The gradient of a LayerNorm on many ranks", "norm_gradients"),
        _ranks("ch06-enter-and-leave", "An all-reduce in two halves: the ends of a region", "enter"),
        _browser("ch07-repair-files", "Repair five broken DeepSpeed files", "repair"),
        _browser("ch07-critical-bucket", "The smallest bucket that keeps pace", "critical_bucket"),
        _browser("ch07-near-best-plan", "A plan within 5 % of the best, from few predictions", "choose"),
        _browser("ch08-mfu-traps", "MFU and HFU, past the traps", "utilisation"),
        _browser("ch08-exposed-time", "Exposed communication, by unions of intervals", "exposed"),
        _browser("ch08-diagnose", "What is wrong with this step?", "diagnose"),
        _browser("ch09-stable-step", "How large a step survives late gradients", "stable_step"),
        _browser("ch09-save-interval", "How often to save, and what a failure costs", "wall_time"),
        _browser("ch09-each-sample-once", "Resume with every sample once", "remaining"),
        _browser("ch10-capstone", "The capstone: a job under a budget", "write_job"),
    )
}


def ids() -> tuple[str, ...]:
    """Every exercise's id, in the order of the book."""
    return tuple(EXERCISES)


def get(id: str) -> Exercise:
    """The exercise called ``id``.

    Raises:
        ValueError: there is none.
    """
    if id not in EXERCISES:
        raise ValueError(f"exercise {id!r} does not exist; valid: {', '.join(EXERCISES)}")
    return EXERCISES[id]
