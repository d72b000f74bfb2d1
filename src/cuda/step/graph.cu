/* SPDX-License-Identifier: MIT
 * CUDA graphs of steps. A decode step of a size that was not seen before runs eagerly. While the
 * device is busy with it, the host enqueues the same step a second time in stream capture, and the
 * next step of that size is one graph launch. So no step waits for a capture, and kernels are
 * loaded before a capture begins (loading one during capture may need the device, which capture
 * forbids).
 *
 * A graph holds kernel arguments by value. Every pointer in them must be the same in every step of
 * the size (step.h, struct sl_cuda_block_layout), and every number a function of the size. The
 * launches' permission to start early (launch.cuh) becomes programmatic edges between kernel nodes;
 * the first kernel of a graph starts when the step's copy is done.
 *
 * To check on a device: cudaGraphGetEdges says cudaGraphDependencyTypeProgrammatic for all edges
 * between kernels; the time of instantiation (expected 1 to 3 ms for 300 kernels); the device
 * memory of a graph.
 */
#include "cuda/step/step.h"

#include "base/log.h"

#include <string.h>

struct sl_cuda_graph *sl_cuda_graph_find(struct sl_cuda_steps *s, const struct sl_step *dev,
                                         sl_forward_fn forward, const void *arg)
{
    for (int32_t i = 0; i < s->n_graphs; i++) {
        struct sl_cuda_graph *g = &s->graph[i];
        if (g->n_spans == dev->batch.n_spans && g->n_spans * g->width == dev->batch.n_tokens &&
            g->n_logits == dev->batch.n_logits && g->variant == dev->variant &&
            g->part == dev->part && g->arg == arg && g->forward == forward)
            return g;
    }
    return NULL;
}

/* Nothing runs between begin and end of the capture. An operation that fails spoils the graph
 * alone: its error is cleared, since the eager steps before and after are sound, and if the device
 * is broken the next call reports it again. */
static cudaError_t capture(struct sl_cuda *cu, const struct sl_step *dev, sl_forward_fn forward,
                           void *arg, cudaGraph_t *graph)
{
    *graph = NULL;
    cudaError_t e = cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess)
        return e;
    cu->steps->recording = true;
    cu->steps->n_host_calls = 0;
    sl_cuda_forward(cu, dev, forward, arg);
    cu->steps->recording = false;
    e = cudaStreamEndCapture(cu->stream, graph);
    if (cu->error != cudaSuccess) {
        e = cu->error;
        cu->error = cudaSuccess;
        cu->error_what = NULL;
    }
    return e;
}

void sl_cuda_graph_record(struct sl_cuda *cu, const struct sl_step *dev, sl_forward_fn forward,
                          void *arg)
{
    struct sl_cuda_steps *s = cu->steps;
    if (s->n_graphs == SL_CUDA_GRAPHS) {
        if (cu->counts.unrecorded++ == 0)
            sl_log(SL_LOG_WARN,
                   "cuda:%d: more than %d kinds of steps: the rest runs without CUDA graphs",
                   cu->device, SL_CUDA_GRAPHS);
        return;
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec = NULL;
    cudaError_t e = capture(cu, dev, forward, arg, &graph);
    if (e == cudaSuccess)
        e = cudaGraphInstantiate(&exec, graph, 0);
    if (e == cudaSuccess)
        e = cudaGraphUpload(exec, cu->stream); /* else the first launch would do it */
    if (graph != NULL)
        cudaGraphDestroy(graph);
    if (e != cudaSuccess) {
        if (exec != NULL)
            cudaGraphExecDestroy(exec);
        exec = NULL;
        cudaGetLastError();
        cu->counts.record_failures++;
        sl_log(SL_LOG_WARN,
               "cuda:%d: steps of %d sequences and %d tokens run without a CUDA graph: %s",
               cu->device, dev->batch.n_spans, dev->batch.n_tokens, cudaGetErrorString(e));
    } else {
        cu->counts.recorded++;
    }
    struct sl_cuda_graph *g = &s->graph[s->n_graphs++];
    g->arg = arg;
    g->forward = forward;
    g->n_spans = dev->batch.n_spans;
    g->width = dev->batch.n_tokens / dev->batch.n_spans;
    g->n_logits = dev->batch.n_logits;
    g->variant = dev->variant;
    g->part = dev->part;
    g->n_host_calls = s->n_host_calls;
    g->exec = exec;
}

extern "C" bool sl_cuda_to_record(struct sl_backend *be)
{
    return sl_cuda(be)->steps->later.forward != NULL;
}

extern "C" void sl_cuda_record(struct sl_backend *be)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_later *l = &cu->steps->later;
    sl_cuda_use(cu);
    if (l->forward != NULL && cu->error == cudaSuccess)
        sl_cuda_graph_record(cu, &l->dev, l->forward, l->arg);
    l->forward = NULL;
}

static void destroy_exec(struct sl_cuda_graph *g)
{
    if (g->exec != NULL)
        cudaGraphExecDestroy(g->exec);
    g->exec = NULL;
}

void sl_cuda_forget(struct sl_backend *be, const void *arg)
{
    struct sl_cuda *cu = sl_cuda(be);
    struct sl_cuda_steps *s = cu->steps;
    if (s == NULL)
        return;
    sl_cuda_use(cu);
    cu->counts.syncs++;
    sl_cuda_check(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize");
    int32_t kept = 0;
    for (int32_t i = 0; i < s->n_graphs; i++) {
        if (s->graph[i].arg == arg)
            destroy_exec(&s->graph[i]);
        else
            s->graph[kept++] = s->graph[i];
    }
    s->n_graphs = kept;
}

void sl_cuda_graphs_deinit(struct sl_cuda_steps *s)
{
    for (int32_t i = 0; i < s->n_graphs; i++)
        destroy_exec(&s->graph[i]);
    s->n_graphs = 0;
}
