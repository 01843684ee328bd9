// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/deck/run_config.hpp"
#include "core/base/kinds.hpp"
#include "io/tokens/tokenizer.hpp"
#include "parallel/layout/axis_kinds.hpp"

namespace mylos {
namespace {

const std::string tokenizer_choices = tokenizer_names("|") + "|none";
const std::string optimizer_choices = choices_of(optimizers());
const std::string optimizer_docs = "Optimizer. " + docs_of(optimizers()) + ".";
const std::string exchange_choices = choices_of(exchanges());
const std::string exchange_docs = "How gradients are combined. " + docs_of(exchanges()) + ".";
const std::string schedule_choices = "auto|" + choices_of(schedules());
const std::string schedule_docs =
    "Order of the passes of a step. auto: accumulate with one stage, otherwise 1f1b; " +
    docs_of(schedules()) + ".";

// The upper bounds keep products of parameters, such as the tokens of a run, within 64 bits.
const ParamSpec params[] = {
    choice_param("model", "preset", "none", "none|gpt2-124m|gpt2-355m|gpt2-774m|gpt2-1558m",
                 "Published shape of GPT-2; the other keys of this section override it."),
    text_param(
        "model", "init", "",
        "Model whose weights the run begins with: a run, a checkpoint, a Hugging Face folder or an llm.c "
        "file (docs/models.md). It also gives the shape; context may be smaller. Optimizer states, step "
        "and schedule begin anew. Empty for random weights.")
        .restart(OnRestart::ignores)
        .evaluated_with(""),
    integer_param("model", "layers", "0", 0, 1024, "", "Number of transformer blocks; 0 takes the preset's.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "heads", "0", 0, 16384, "",
                  "Number of attention heads, a divisor of width; 0 takes the preset's.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "width", "0", 0, 1048576, "",
                  "Channels of the residual stream; 0 takes the preset's.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "feed_forward", "0", 0, 4194304, "",
                  "Inner width of a dense feed-forward layer, a multiple of parallel.tensor; 0 takes that of "
                  "model.init, otherwise four times width.")
        .restart(OnRestart::ignores),
    integer_param("model", "context", "0", 0, 65536, "tokens",
                  "Number of learned positions; 0 takes the preset's.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "vocab", "0", 0, 1048576, "",
                  "Number of token ids, 257 for bytes; 0 takes the preset's. Token files hold 16-bit ids: no "
                  "data have an id from 65536 on.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "vocab_multiple", "128", 1, 65536, "",
                  "The vocabulary is padded to a multiple of this in memory; padded logits are masked."),
    boolean_param("model", "tied", "true", "The head shares the weights of the token embedding.")
        .refused_by_checkpoint_of("another model"),
    real_param("model", "dropout", "0", 0.0, 0.99, "",
               "Probability of dropping an element of the embedding, the attention weights and both residual "
               "branches."),
    integer_param("model", "experts", "0", 0, 1024, "",
                  "Experts of a feed-forward layer, of which each token uses experts_per_token (a mixture of "
                  "experts, docs/experts.md); 0 for none.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "experts_per_token", "2", 1, 64, "",
                  "Experts that each token uses, at most experts.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "expert_width", "0", 0, 4194304, "",
                  "Inner width of an expert, a multiple of parallel.tensor; 0 takes a dense layer's, "
                  "feed_forward."),
    integer_param("model", "expert_every", "1", 1, 1024, "blocks",
                  "Every n-th block has experts; the others have a dense layer.")
        .refused_by_checkpoint_of("another model"),
    boolean_param("model", "shared_expert", "false",
                  "A dense layer of the width of an expert is added to the experts for every token.")
        .refused_by_checkpoint_of("another model"),
    choice_param("model", "router", "auto", "auto|topk_softmax|softmax_topk",
                 "How the chosen experts are weighted. topk_softmax: by a softmax over the chosen ones; "
                 "softmax_topk: by their share of a softmax over all; auto: the latter if a token uses one "
                 "expert."),
    choice_param("model", "router_noise", "none", "none|normal|learned",
                 "What is added to the scores of experts in training. normal: normal numbers with a standard "
                 "deviation of 1 / experts; learned: with one that the model learns (Shazeer et al., 2017).")
        .refused_by_checkpoint_of("another model"),
    real_param("model", "depth_capacity", "0", 0.0, 1.0, "",
               "The share of the tokens of a sequence that a routed block processes, the others skip it (a "
               "mixture of depths, docs/experts.md); 0: no block is routed.")
        .refused_by_checkpoint_of("another model"),
    integer_param("model", "depth_every", "2", 1, 1024, "blocks",
                  "Every n-th block is routed; the others process all tokens.")
        .refused_by_checkpoint_of("another model"),

    integer_param("train", "steps", nullptr, 1, 1e9, "steps",
                  "Optimizer steps of the whole run; the learning rate schedule ends here."),
    integer_param(
        "train", "stop_step", "0", 0, 1e9, "steps",
        "The run ends after this step with a checkpoint, and --restart continues it; 0 runs to the end.")
        .changes(Effect::end),
    integer_param(
        "train", "global_batch", nullptr, 1, 65536, "sequences",
        "Sequences per optimizer step over all ranks; a multiple of micro_batch times parallel.data."),
    integer_param(
        "train", "micro_batch", "0", 0, 65536, "sequences",
        "Sequences per forward pass of one data group (see parallel.data). A group accumulates gradients "
        "until its share of the global batch is done; 0 takes the whole share in one pass."),
    integer_param("train", "seq_len", "0", 0, 65536, "tokens",
                  "Length of a training sequence, at most model.context; 0 takes model.context.")
        .changes(Effect::samples),
    choice_param(
        "train", "dtype", "fp32", "fp32|bf16|fp16",
        "Data type of weights, activations and the residual stream; see optim.master for bf16 and fp16."),
    choice_param("train", "grad_dtype", "auto", "auto|fp32|bf16|fp16",
                 "Data type in which gradients are summed; auto takes fp32 if gradients are accumulated, "
                 "otherwise dtype.")
        .evaluated_with("auto"),
    real_param("train", "loss_scale", "0", 0.0, 16777216.0, "",
               "Initial loss scale: the loss is multiplied by it, so that small gradients do not vanish; 0 "
               "takes 65536 for fp16, otherwise 1."),
    integer_param(
        "train", "loss_scale_window", "2000", 0, 1e9, "steps",
        "With dtype = fp16, a gradient that is not finite although the loss is finite halves the loss scale "
        "and skips the update; after this many applied steps without a change, the scale is doubled. 0 keeps "
        "the scale."),
    choice_param(
        "train", "recompute", "none", "none|selective|block",
        "Activations that the backward pass recomputes, so that they need not be kept. none: no "
        "activations; selective: the outputs of layernorm and GELU; block: everything within a block."),
    real_param("train", "expert_capacity", "0", 0.0, 1e6, "",
               "An expert takes at most this many times the tokens of a sequence that it would with equal "
               "loads; the layer adds nothing for what finds its expert full. 0: it takes all. Evaluation "
               "always takes all."),
    choice_param("train", "expert_order", "token", "token|choice",
                 "Who comes first if expert_capacity is short. token: earlier tokens; choice: first choices "
                 "of all tokens, then second ones."),
    real_param("train", "balance_loss", "0.01", 0.0, 1000.0, "",
               "Factor of the loss that grows as the loads of the experts become unequal (Fedus et al., "
               "2021); used with model.experts."),
    real_param("train", "router_z_loss", "0", 0.0, 1000.0, "",
               "Factor of the loss of large router logits (Zoph et al., 2022); used with model.experts."),
    integer_param("train", "seed", "1", 0, unbounded, "",
                  "Seed of initialisation, data order, dropout and stochastic rounding.")
        .changes(Effect::samples),
    real_param(
        "train", "wall_clock", "0", 0.0, 1e9, "s",
        "The run is stopped, with a checkpoint, so that it should end before this much time has passed; 0 "
        "sets no limit.")
        .changes(Effect::end),
    text_param(
        "train", "end_time", "auto",
        "When the job will be ended, in Unix seconds: the run is stopped before, as for wall_clock. auto: "
        "SLURM_JOB_END_TIME, if that is set; none: not known.")
        .changes(Effect::end)
        .of_this_rank(),
    real_param(
        "train", "end_margin", "30", 0.0, 1e6, "s",
        "The run should end this long before end_time, so that time is left for what follows it in the "
        "job.")
        .changes(Effect::end)
        .of_this_rank(),

    choice_param("optim", "name", optimizers().front()->name, optimizer_choices.c_str(),
                 optimizer_docs.c_str())
        .refused_by_checkpoint_of("the states of another optimizer"),
    real_param("optim", "lr", "6e-4", 0.0, 1000.0, "", "Largest learning rate, reached after the warmup."),
    real_param("optim", "min_lr", "0", 0.0, 1000.0, "",
               "Learning rate at the end of the schedule; not used if schedule = constant."),
    choice_param("optim", "schedule", "cosine", "constant|linear|cosine|wsd",
                 "Learning rate after the warmup; wsd stays at lr, then falls linearly over the last "
                 "decay_steps."),
    integer_param("optim", "warmup", "0", 0, 1e9, "steps", "Steps of the linear rise from 0 to lr."),
    integer_param("optim", "decay_steps", "0", 0, 1e9, "steps", "Length of the decay if schedule = wsd."),
    real_param("optim", "weight_decay", "0.1", 0.0, 1000.0, "",
               "Weight decay of every tensor with two or more dimensions: decoupled with adamw, part of the "
               "gradient with sgd."),
    choice_param("optim", "master", "fp32", "fp32|none",
                 "Master weights if dtype = bf16 or fp16. fp32: a copy of the weights in fp32 is updated, "
                 "and rounding it gives the weights; none: the weights themselves are updated with "
                 "stochastic rounding, which saves 4 bytes per parameter."),
    real_param("optim", "clip_norm", "1", 0.0, 1e30, "",
               "A gradient whose global L2 norm is larger is scaled down to this norm; 0 does not clip."),
    choice_param("optim", "clip_scope", "model", "model|stage",
                 "What the norm is of. model: the whole gradient; stage: that of each stage, which clips and "
                 "skips alone, as schedule = pipedream and pipedream_2bw need.")
        .evaluated_with("model"),

    text_param("data", "train", nullptr,
               "Token files to train on: names and patterns such as train_*.bin, separated by commas; a "
               "weighted source is followed by :WEIGHT (docs/data.md).")
        .changes(Effect::place)
        .of_this_rank()
        .evaluated_with("unused"),
    text_param(
        "data", "valid", "",
        "Token files to evaluate on, in the syntax of train but without weights; empty for no evaluation.")
        .changes(Effect::place)
        .of_this_rank(),
    choice_param("data", "tokenizer", "none", tokenizer_choices.c_str(),
                 "Tokenizer that made the token files, so that `generate` can read and write text.")
        .changes(Effect::place),
    text_param(
        "data", "ranks", "",
        "GPT-2's merge ranks, if tokenizer = gpt2: a .tiktoken file, vocab.json next to merges.txt, or the "
        "folder that contains both; the run keeps a copy for `generate`.")
        .changes(Effect::place)
        .evaluated_with(""),

    integer_param("eval", "every", "0", 0, 1e9, "steps",
                  "Steps between evaluations; 0 evaluates only at the end.")
        .changes(Effect::records)
        .evaluated_with("0"),
    integer_param("eval", "batches", "0", 0, 1e9, "global batches",
                  "Largest number of global batches that one evaluation reads; 0 reads all of the data.")
        .changes(Effect::records),
    text_param(
        "eval", "choices", "",
        "Multiple choice questions, such as HellaSwag's, that each evaluation answers too: JSON lines or "
        "llm.c's file (docs/models.md); empty for none.")
        .changes(Effect::records)
        .evaluated_with(""),
    choice_param("eval", "choices_style", "llmc", "llmc|harness",
                 "How choices are encoded and normalised: as in llm.c, or as in lm-evaluation-harness' task "
                 "hellaswag.")
        .changes(Effect::records),
    integer_param("eval", "choices_limit", "0", 0, 1e9, "questions",
                  "Number of questions that are answered, from the first; 0 answers all.")
        .changes(Effect::records),

    boolean_param("parallel", "vocab", "false",
                  "The tensor ranks also divide the vocabulary: the token embedding, the head and the loss.")
        .evaluated_with("false")
        .open_in_evaluation(),
    boolean_param("parallel", "sequence", "false",
                  "The tensor ranks also divide the rows of the residual stream, with its norms and dropout "
                  "(sequence parallelism): less memory for activations, more traffic.")
        .evaluated_with("false"),
    choice_param("parallel", "exchange", exchanges().front()->name, exchange_choices.c_str(),
                 exchange_docs.c_str())
        .evaluated_with("ddp")
        .open_in_evaluation(),
    integer_param("parallel", "chunks", "1", 1, 1024, "",
                  "Parts of the model that each stage has, if the schedule does not say.")
        .evaluated_with("1"),
    choice_param("parallel", "schedule", "auto", schedule_choices.c_str(), schedule_docs.c_str())
        .evaluated_with("accumulate"),
    text_param("parallel", "schedule_file", "",
               "The list that schedule = file follows, in PyTorch's form: a row per stage with cells such as "
               "0F0, 2I1, 2W1 and 1B3 (chunk, forward, input gradients, weight gradients or whole backward "
               "pass, micro-batch).")
        .evaluated_with(""),
    text_param(
        "parallel", "stages", "auto",
        "Blocks of each chunk in the order of the model, such as 8,4; the first and the last chunk may "
        "have 0. The embedding is part of the first chunk, the head of the last. auto: those with the "
        "shortest simulated step; profile:PATH: the same with the measured costs of units in a file "
        "that profile.step wrote (RUN/units-N.csv).")
        .evaluated_with("auto")
        .open_in_evaluation(),
    text_param(
        "parallel", "replicas", "",
        "Ranks of each stage that take micro-batches in turn, such as 2,1, with schedule = pipedream or "
        "pipedream_2bw: ranks = tensor x their sum, stage by stage. Empty: as many on all stages, which is "
        "parallel.data. auto: the numbers, and unless stages says where to cut, the stages, with the "
        "shortest time per micro-batch (docs/layouts.md).")
        .evaluated_with(""),
    boolean_param("parallel", "vertical_sync", "false",
                  "With schedule = pipedream, a micro-batch uses the same version of the weights on all "
                  "stages: that of the first.")
        .evaluated_with("false"),
    integer_param("parallel", "emulated_stages", "1", 1, 1024, "stages",
                  "With schedule = pipedream or pipedream_2bw and one stage, the ranks compute, one "
                  "micro-batch after another, what so many stages would.")
        .evaluated_with("1"),
    integer_param(
        "parallel", "in_flight", "0", 0, 65536, "micro-batches",
        "The most micro-batches whose activations a stage keeps with zero_bubble and zero_bubble_v; "
        "0: as many as there are stages."),

    text_param("backend", "compute", "auto",
               "Compute backend; auto takes the best one that works on this machine.")
        .restart(OnRestart::repeats)
        .evaluated_with("auto")
        .open_in_evaluation(),
    text_param("backend", "comm", "auto",
               "Communication backend; auto takes the best one that works on this machine.")
        .restart(OnRestart::repeats)
        .evaluated_with("auto")
        .open_in_evaluation(),
    integer_param(
        "backend", "threads", "0", 0, 512, "threads",
        "Host threads of a rank; 0 takes OMP_NUM_THREADS if it is set, otherwise the smallest of an "
        "even share of the hardware threads that the rank may use, of the CPU quota of its container "
        "(cgroup), what Slurm allotted to it, and OMP_THREAD_LIMIT.")
        .restart(OnRestart::repeats)
        .of_this_rank()
        .evaluated_with("0")
        .open_in_evaluation(),
    choice_param(
        "backend", "graphs", "auto", "auto|true|false",
        "From the second step on, the kernels of a pass or of the update between one communication "
        "call and the next are queued as one CUDA graph instead of one by one. auto does so on a GPU. "
        "The results are the same.")
        .changes(Effect::speed)
        .open_in_evaluation(),

    text_param("comm", "algorithm", "native",
               "How collectives are performed: native is the backend's own way; naive, tree, ring and "
               "halving_doubling build them from the backend's point-to-point messages. By payload: "
               "`tree<65536,ring` takes tree below 65536 bytes and ring otherwise. By collective, as in "
               "`all_reduce:tree<65536,ring;broadcast:tree`: a collective that is not named uses the part "
               "without a name if there is one, otherwise native. auto measures and chooses at startup.")
        .restart(OnRestart::repeats)
        .open_in_evaluation(),
    boolean_param("comm", "progress_thread", "false",
                  "A thread of each rank advances communication while the rank's other threads compute.")
        .changes(Effect::speed)
        .open_in_evaluation(),
    real_param("comm", "simulate_alpha", "0", 0.0, 1e9, "us",
               "Latency of the link that simulate_gbps simulates between every pair of ranks.")
        .changes(Effect::speed)
        .open_in_evaluation(),
    real_param("comm", "simulate_gbps", "0", 0.0, 1e9, "Gbit/s",
               "Simulates a link of this bandwidth between every pair of ranks, for studies on one machine; "
               "needs an algorithm other than native. 0 simulates none.")
        .changes(Effect::speed)
        .open_in_evaluation(),
    real_param("comm", "timeout", "600", 0.1, 1e6, "s",
               "A collective or computation that takes longer counts as stalled, and the job ends with exit "
               "code 76.")
        .changes(Effect::end)
        .open_in_evaluation(),
    real_param("comm", "heartbeat", "5", 0.1, 1e6, "s",
               "A rank that is silent for longer counts as stopped, and the job ends with exit code 76.")
        .changes(Effect::end)
        .open_in_evaluation(),
    real_param("comm", "start_timeout", "60", 0.1, 1e6, "s",
               "If MPI has not started on all ranks within this time, the job ends with exit code 76.")
        .changes(Effect::end)
        .open_in_evaluation(),

    real_param("io", "timeout", "600", 0.1, 1e6, "s",
               "A file system that does not answer one call within this time counts as hanging, and the job "
               "ends with exit code 74.")
        .changes(Effect::end)
        .open_in_evaluation(),

    choice_param(
        "guard", "policy", "skip", "skip|stop",
        "Reaction to a step whose loss or gradient norm is not finite, or whose norm spikes. skip: "
        "its update is skipped; stop: the run ends with exit code 17. A step that only halves the loss scale "
        "is skipped under either policy."),
    integer_param(
        "guard", "max_skips", "10", 1, 1e9, "steps",
        "This many skipped steps in a row end the run with exit code 17; steps skipped only to halve the "
        "loss scale (see train.loss_scale_window) do not count."),
    real_param("guard", "spike_factor", "0", 0.0, 1e30, "deviations",
               "A gradient norm this many standard deviations above its running mean is a spike; 0 turns "
               "detection off."),
    integer_param("guard", "spike_window", "100", 2, 1e9, "steps",
                  "Steps that the running mean and deviation cover; no step counts as a spike before this "
                  "many have passed."),
    integer_param(
        "guard", "replica_check_every", "0", 0, 1e9, "steps",
        "Steps between comparisons of the hashes of weights and optimizer states across replicas; 0 "
        "compares only for checkpoints.")
        .changes(Effect::end),

    integer_param("checkpoint", "every", "0", 0, 1e9, "steps",
                  "Steps between checkpoints; 0 writes one only when the run ends.")
        .changes(Effect::records),
    boolean_param("checkpoint", "async", "false",
                  "Weights and the optimizer's states are copied to host memory, and the copies are written "
                  "while training goes on.")
        .changes(Effect::speed),
    text_param("checkpoint", "dir", "",
               "Directory for the checkpoints, such as one on a scratch file system; if empty, they are in "
               "the run's directory.")
        .changes(Effect::place)
        .evaluated_with(""),
    integer_param("checkpoint", "keep", "2", 2, 1e9, "checkpoints",
                  "How many of the newest checkpoints to keep; damaged ones do not count.")
        .changes(Effect::records),
    integer_param("checkpoint", "keep_every", "0", 0, 1e9, "steps",
                  "Checkpoints of steps that are multiples of this are kept in addition to the newest; 0 "
                  "keeps none.")
        .changes(Effect::records),
    integer_param(
        "checkpoint", "keep_abandoned", "1", 0, 1e9, "directories",
        "How many of the newest abandoned-<n> directories to keep; they contain the later checkpoints "
        "that a restart from an earlier step moved away.")
        .changes(Effect::records),
    integer_param(
        "checkpoint", "alignment", "4096", 1, 1e9, "bytes",
        "Tensors of at least this size begin at multiples of it in the file; on Lustre, set it to the "
        "stripe size.")
        .changes(Effect::records),

    boolean_param("metrics", "tensorboard", "false",
                  "Each row of metrics is also written for TensorBoard, into RUN/tensorboard.")
        .changes(Effect::records),

    integer_param("profile", "step", "0", 0, 1e9, "steps",
                  "Step N that is traced into trace-N.json in the run's directory; 0 traces none.")
        .changes(Effect::records),

    text_param("run", "dir", nullptr,
               "Directory of this run, for its resolved deck, metrics, checkpoints and report.")
        .changes(Effect::place)
        .evaluated_with("unused"),

    real_param(
        "machine", "peak_tflops", "0", 0.0, 1e6, "TFLOP/s",
        "Peak rate of one rank's processor, of which MFU is a fraction; 0 takes the measured GEMM rate.")
        .changes(Effect::records),
    text_param(
        "machine", "file", "",
        "Machine file (docs/planner.md) with which mylos plan reckons, and parallel.stages = auto cuts "
        "the model; other keys of this section win over it.")
        .changes(Effect::place),
    real_param("machine", "memory_gb", "0", 0.0, 1e6, "GB",
               "The most memory of a rank that parallel.replicas = auto plans with; 0: no limit.")
        .changes(Effect::speed),
    real_param("machine", "node_gbps", "0", 0.0, 1e6, "Gbit/s",
               "Bandwidth between two ranks of a node for parallel.replicas = auto; 0 takes "
               "comm.simulate_gbps or, if that is 0, measures it with MPI's messages (a dry run ignores it).")
        .changes(Effect::speed),
    real_param("machine", "link_gbps", "0", 0.0, 1e6, "Gbit/s", "The same between ranks of two nodes.")
        .changes(Effect::speed),
};

/// Inserts the parameters of all `kinds` after the parameter `name`, which chooses one of them.
template <class Kind>
void insert_params(std::vector<ParamSpec>& specs, std::string_view section, std::string_view name,
                   std::span<const Kind* const> kinds) {
  const auto chooses = [&](const ParamSpec& spec) { return spec.section == section && spec.name == name; };
  auto place = std::ranges::find_if(specs, chooses) + 1;
  for (const Kind* kind : kinds) {
    place = specs.insert(place, kind->params.begin(), kind->params.end()) +
            static_cast<std::ptrdiff_t>(kind->params.size());
  }
}

/// Inserts the keys of the axes, with which their section begins.
void insert_axes(std::vector<ParamSpec>& specs) {
  auto place = std::ranges::find(specs, std::string_view("parallel"), &ParamSpec::section);
  for (const AxisKind* kind : axis_kinds()) place = specs.insert(place, kind->key) + 1;
}

}  // namespace

std::span<const ParamSpec> deck_params() {
  static const std::vector<ParamSpec> all = [] {
    std::vector<ParamSpec> specs(std::begin(params), std::end(params));
    insert_params(specs, "optim", "name", optimizers());
    insert_params(specs, "parallel", "exchange", exchanges());
    insert_axes(specs);
    return specs;
  }();
  return all;
}

}  // namespace mylos
