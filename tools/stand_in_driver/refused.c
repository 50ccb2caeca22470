#include <stdio.h>
#include <stdlib.h>
#define REFUSED(name) int name(void) { fprintf(stderr, #name " is not part of the stand-in\n"); abort(); }
REFUSED(cudaDeviceCanAccessPeer) REFUSED(cudaDeviceEnablePeerAccess) REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaEventElapsedTime) REFUSED(cudaFreeAsync) REFUSED(cudaGraphNodeGetDependencies)
REFUSED(cudaIpcCloseMemHandle) REFUSED(cudaIpcGetMemHandle) REFUSED(cudaIpcOpenMemHandle) REFUSED(cudaMallocAsync)
REFUSED(cudaMemPoolGetAttribute) REFUSED(cudaMemPoolSetAccess) REFUSED(cudaMemPoolSetAttribute)
REFUSED(cudaMemPoolTrimTo) REFUSED(cudaMemcpy) REFUSED(cudaMemcpyAsync) REFUSED(cudaMemcpyPeerAsync)
REFUSED(cudaStreamCreateWithPriority) REFUSED(cudaStreamQuery) REFUSED(cudaStreamWaitEvent)
