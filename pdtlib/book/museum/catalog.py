"""The exhibits, in the order of the book's chapters."""

from pdtlib.book.museum import programs
from pdtlib.book.museum.exhibit import Exhibit

EXHIBITS = (
    Exhibit(
        id="token-mean",
        chapter="02_data_parallel",
        title="A mean of means",
        symptom="The loss changes with the number of GPUs; short samples weigh more than long ones.",
        fault="Each rank takes the mean over its own tokens, and then the ranks are averaged. Where a rank "
        "has few tokens, each of them counts for more.",
        lesson="Sum losses and count tokens on every rank, add both up over the ranks, and divide once.",
        one=programs.loss_of_one,
        faulty=programs.mean_of_means,
        mended=programs.mean_of_tokens,
    ),
    Exhibit(
        id="sum-for-mean",
        chapter="02_data_parallel",
        title="A sum where a mean was meant",
        symptom="Gradients are as many times too large as there are ranks. A high learning rate, no error.",
        fault="The collective adds where the program expects a mean. Some backends had no mean for a "
        "reduce-scatter and returned the sum, without an error.",
        lesson="Divide by the number of ranks yourself, and check the backend at the start.",
        one=programs.mean_of_one,
        faulty=programs.reduced_by_sum,
        mended=programs.reduced_by_mean,
    ),
    Exhibit(
        id="own-seeds",
        chapter="02_data_parallel",
        title="Every rank shuffles for itself",
        symptom="Some samples are read twice in an epoch, others never. The loss looks usual.",
        fault="Each rank draws an order of its own and takes its part of that. The parts overlap, and what "
        "lies in none of them is never read.",
        lesson="One seed for all; a rank takes its part of the common order.",
        one=programs.epoch_of_one,
        faulty=programs.epoch_own_seeds,
        mended=programs.epoch_common_seed,
    ),
    Exhibit(
        id="bias",
        chapter="03_tensor_parallel",
        title="A bias that counts once for each rank",
        symptom="A model cut by rows starts with another loss than the same weights on one GPU.",
        fault="The bias is added to each rank's part of the sum, before the parts are added up. It is in "
        "the result as often as there are ranks.",
        lesson="Add the bias after the all-reduce, or on one rank alone.",
        one=programs.row_layer_of_one,
        faulty=programs.bias_on_every_rank,
        mended=programs.bias_after_the_sum,
    ),
    Exhibit(
        id="maximum",
        chapter="03_tensor_parallel",
        title="Each rank subtracts its own maximum",
        symptom="The loss over a cut vocabulary is too large, more so when one logit stands out.",
        fault="Each rank divides its exponentials by that of its own largest logit, but the sum is "
        "multiplied by that of the largest of all. The parts have different scales.",
        lesson="All-reduce the maximum before any exponential.",
        one=programs.cross_entropy_of_one,
        faulty=programs.cross_entropy_own_maximum,
        mended=programs.cross_entropy_common_maximum,
    ),
    Exhibit(
        id="layers",
        chapter="04_pipeline_parallel",
        title="Layers that are nowhere",
        symptom="A model of 30 layers on 4 stages trains with 28. It is worse than it should be.",
        fault="The floor division forgets the remainder. What is left over is on no stage.",
        lesson="Deal out the remainder, and assert that every layer is there once.",
        one=programs.layers_of_one,
        faulty=programs.layers_floored,
        mended=programs.layers_dealt,
    ),
    Exhibit(
        id="batch",
        chapter="02_data_parallel",
        title="Micro-batches counted by the world size",
        symptom="With a pipeline of 2 the batch is half of what the file says.",
        fault="The world size counts processes. Stages of one pipeline work on the same sequences, so only "
        "replicas may divide the batch.",
        lesson="Divide by micro-batch times replicas; stages of a pipeline share a batch.",
        one=programs.batch_of_one,
        faulty=programs.batch_by_world_size,
        mended=programs.batch_by_replicas,
    ),
    Exhibit(
        id="tied",
        chapter="05_3d_parallel",
        title="Tied embeddings that drift apart",
        symptom="First and last stage hold the same matrix, and after a step they differ.",
        fault="Each copy is averaged over its own replicas, but the two stages never meet. Each copy learns "
        "from its own half of the gradient.",
        lesson="Add up the gradients of both copies before the optimizer sees them.",
        one=programs.tied_of_one,
        faulty=programs.tied_not_joined,
        mended=programs.tied_joined,
    ),
    Exhibit(
        id="norm",
        chapter="05_3d_parallel",
        title="A gradient's norm with copies in it",
        symptom="The norm grows with tensor parallelism, and clipping sets in too early.",
        fault="The weight of a norm is whole on every rank, and its square is added up once for each of "
        "them.",
        lesson="Square what is sharded on every rank; count what is replicated once.",
        one=programs.norm_of_one,
        faulty=programs.norm_counts_copies,
        mended=programs.norm_counts_once,
    ),
    Exhibit(
        id="clipping",
        chapter="05_3d_parallel",
        title="Clipping by a part of the norm",
        symptom="Sharded gradients are each clipped by what a rank sees; their direction changes.",
        fault="Each rank divides by the norm of its own shard. Shards shrink by different factors, so the "
        "gradient points elsewhere.",
        lesson="Add up squares over all ranks first, then take the root.",
        one=programs.clipped_of_one,
        faulty=programs.clipped_by_own_norm,
        mended=programs.clipped_by_common_norm,
    ),
    Exhibit(
        id="norm-gradient",
        chapter="06_sequence_parallel",
        title="A LayerNorm that learns from a part",
        symptom="With cut positions its weight follows one rank's part of the sequence, and nobody else's.",
        fault="Each rank sees some positions only, and its gradient is a part of a sum. Here the first "
        "rank's part is taken for the whole.",
        lesson="All-reduce the gradients of what acts on a part of the positions.",
        one=programs.norm_gradient_of_one,
        faulty=programs.norm_gradient_of_a_part,
        mended=programs.norm_gradient_summed,
    ),
    Exhibit(
        id="resume",
        chapter="09_async_and_elastic",
        title="Each worker goes on at its own position",
        symptom="After a restart with fewer workers some samples are read twice in an epoch.",
        fault="A position on a worker means something only as long as there are as many workers. Dealt out "
        "anew, the same positions are other samples.",
        lesson="Make the batch a function of the step; deal out what is left.",
        one=programs.samples_of_one,
        faulty=programs.samples_by_position,
        mended=programs.samples_by_step,
    ),
)
