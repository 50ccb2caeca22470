// A stand-in for the CUDA runtime and driver: hands out addresses, counts bytes, does no work.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
static size_t total() { static size_t t = [] { const char* s = getenv("STAND_IN_BYTES"); return s ? strtoull(s, nullptr, 10) : (size_t)80 << 30; }(); return t; }
static size_t used = 0;
static std::map<size_t, size_t> live;            // address -> bytes
static std::multimap<size_t, size_t> freed;      // bytes -> address
static size_t next_address = 0x7f0000000000ull;
static bool ready = true;
static size_t place(size_t n) {
  n = (n + (2 << 20) - 1) / (2 << 20) * (2 << 20);
  auto it = getenv("STAND_IN_REUSE") ? freed.find(n) : freed.end();
  if (it != freed.end()) { size_t a = it->second; freed.erase(it); return a; }
  size_t a = next_address; next_address += n; return a;
}
extern "C" {
void stand_in_ready(int r) { ready = r; }
cudaError_t cudaMalloc(void** p, size_t n) {
  if (used + n > total()) { *p = nullptr; return cudaErrorMemoryAllocation; }
  size_t a = place(n); live[a] = n; used += n; *p = (void*)a; return cudaSuccess;
}
cudaError_t cudaFree(void* p) { if (!p) return cudaSuccess; auto it = live.find((size_t)p); if (it == live.end()) return cudaErrorInvalidValue; used -= it->second; freed.emplace((it->second + (2<<20)-1)/(2<<20)*(2<<20), it->first); live.erase(it); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) { *t = total(); *f = total() - used; return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { *d = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { memset(p, 0, sizeof *p); strcpy(p->name, "stand-in"); p->totalGlobalMem = total(); p->major = 9; return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "stand-in error"; }
const char* cudaGetErrorString(cudaError_t) { return "stand-in error"; }
cudaError_t cudaDriverGetVersion(int* v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { *e = (cudaEvent_t)malloc(1); return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return ready ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* s) { *s = cudaStreamCaptureStatusNone; return cudaSuccess; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* s, unsigned long long* i, cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) { *s = cudaStreamCaptureStatusNone; if (i) *i = 0; return cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) { *a = 0; *b = 0; return cudaSuccess; }
static CUresult s_DeviceGet(CUdevice* d, int) { *d = 0; return CUDA_SUCCESS; }
static CUresult s_DeviceGetAttribute(int* v, CUdevice_attribute, CUdevice) { *v = 0; return CUDA_SUCCESS; }
static CUresult s_Reserve(CUdeviceptr* p, size_t n, size_t, CUdeviceptr, unsigned long long) { *p = place(n); return CUDA_SUCCESS; }
static std::map<CUmemGenericAllocationHandle, size_t> handles; static CUmemGenericAllocationHandle next_handle = 1;
static CUresult s_Create(CUmemGenericAllocationHandle* h, size_t n, const CUmemAllocationProp* prop, unsigned long long) {
  if (prop->requestedHandleTypes == (CUmemAllocationHandleType)8) return CUDA_ERROR_NOT_SUPPORTED; // no fabric
  if (used + n > total()) return CUDA_ERROR_OUT_OF_MEMORY; used += n; handles[next_handle] = n; *h = next_handle++; return CUDA_SUCCESS; }
static CUresult s_Release(CUmemGenericAllocationHandle h) { used -= handles[h]; handles.erase(h); return CUDA_SUCCESS; }
static CUresult s_Ok() { return CUDA_SUCCESS; }
static CUresult s_Granularity(size_t* g, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) { *g = 2 << 20; return CUDA_SUCCESS; }
static CUresult s_String(CUresult, const char** s) { *s = "stand-in driver error"; return CUDA_SUCCESS; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** f, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* r) {
  std::map<std::string, void*> known = {{"cuDeviceGet", (void*)s_DeviceGet}, {"cuDeviceGetAttribute", (void*)s_DeviceGetAttribute}, {"cuMemAddressReserve", (void*)s_Reserve}, {"cuMemCreate", (void*)s_Create}, {"cuMemRelease", (void*)s_Release}, {"cuMemGetAllocationGranularity", (void*)s_Granularity}, {"cuGetErrorString", (void*)s_String}};
  auto it = known.find(symbol); *f = it == known.end() ? (void*)s_Ok : it->second; if (r) *r = cudaDriverEntryPointSuccess; return cudaSuccess; }
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** f, unsigned long long g, cudaDriverEntryPointQueryResult* r) { return cudaGetDriverEntryPointByVersion(symbol, f, 0, g, r); }
}
