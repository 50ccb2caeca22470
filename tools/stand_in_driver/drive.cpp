#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAStream.h>
#include <iostream>
#include <sstream>
#include <unordered_map>
#ifndef BEFORE_2_13
#include <c10/cuda/PeerToPeerAccess.h>
#endif
extern "C" void stand_in_ready(int);
using namespace c10::cuda;
using c10::CachingDeviceAllocator::TraceEntry;
namespace c10::cuda::_internal { void setHasPrimaryContext(bool (*)(c10::DeviceIndex)); }
static bool has(c10::DeviceIndex) { return true; }
static std::shared_ptr<c10::GatheredContext> no_context() { return nullptr; }
static const char* names[] = {"alloc","free_requested","free_completed","segment_alloc","segment_free","segment_map","segment_unmap","snapshot","oom"};
int main() {
  auto* a = CUDACachingAllocator::get();
  a->init(1);
  c10::cuda::_internal::setHasPrimaryContext(has);
  CUDACachingAllocator::CUDAAllocatorConfig::set_expandable_segments_handle_type(CUDACachingAllocator::Expandable_Segments_Handle_Type::POSIX_FD);
#ifndef BEFORE_2_13
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  std::string line; std::unordered_map<long, void*> at; std::ostringstream marks; bool first = true;
  a->recordHistory(true, no_context, 10000000, c10::CachingDeviceAllocator::RecordContext::ALL, true, {});
  while (std::getline(std::cin, line)) {
    std::istringstream in(line); char op; in >> op; long id; size_t n; long s; double x;
    if (op == 'C') { in >> x; a->setMemoryFraction(x, 0); }
    else if (op == 'H') { a->recordHistory(true, no_context, 10000000, c10::CachingDeviceAllocator::RecordContext::ALL, true, {}); }
    else if (op == 'A') { in >> id >> n >> s; try { at[id] = a->raw_alloc_with_stream(n, (cudaStream_t)s); } catch (const c10::OutOfMemoryError& e) { at[id] = nullptr; std::cerr << "OOM " << id << " " << e.what_without_backtrace() << "\n"; } }
    else if (op == 'F') { in >> id; if (at[id]) a->raw_delete(at[id]); at.erase(id); }
    else if (op == 'R') { in >> id >> s; if (at[id]) { c10::DataPtr p(at[id], at[id], a->raw_deleter(), c10::Device(c10::kCUDA, 0)); a->recordStream(p, getStreamFromExternal((cudaStream_t)s, 0)); p.release_context(); } }
    else if (op == 'Y') { in >> n; stand_in_ready(n); }
    else if (op == 'E') { a->emptyCache({0, 0}); }
  }
  auto snap = a->snapshot({0, 0});
  std::cout << "{\"segments\":[";
  for (auto& g : snap.segments) {
    std::cout << (first ? "" : ",") << "{\"device\":0,\"address\":" << g.address << ",\"total_size\":" << g.total_size << ",\"allocated_size\":" << g.allocated_size << ",\"active_size\":" << g.active_size << ",\"requested_size\":" << g.requested_size << ",\"stream\":" << (long)g.stream << ",\"segment_type\":\"" << (g.is_large ? "large" : "small") << "\",\"segment_pool_id\":[" << g.owner_private_pool_id.first << "," << g.owner_private_pool_id.second << "],\"is_expandable\":" << (g.is_expandable ? "true" : "false") << ",\"blocks\":[";
    first = false; bool fb = true; size_t ad = g.address;
    for (auto& b : g.blocks) { std::cout << (fb ? "" : ",") << "{\"address\":" << ad << ",\"size\":" << b.size << ",\"requested_size\":" << b.requested_size << ",\"state\":\"" << (b.allocated ? "active_allocated" : b.active ? "active_pending_free" : "inactive") << "\"}"; ad += b.size; fb = false; }
    std::cout << "]}";
  }
  std::cout << "],\"device_traces\":[["; first = true;
  for (auto& t : snap.device_traces.at(0)) {
    std::cout << (first ? "" : ",\n") << "{\"action\":\"" << names[t.action_] << "\",\"" << (t.action_ == TraceEntry::OOM ? "device_free" : "addr") << "\":" << t.addr_ << ",\"size\":" << t.size_ << ",\"stream\":" << (long)t.stream_ << "}"; first = false;
  }
  auto& c = snap.config_metadata;
  std::cout << "]],\"allocator_settings\":{\"PYTORCH_CUDA_ALLOC_CONF\":\"" << c.last_allocator_settings << "\",\"max_split_size\":" << (int64_t)c.max_split_size << ",\"garbage_collection_threshold\":" << c.garbage_collection_threshold << ",\"expandable_segments\":" << (c.expandable_segments ? "true" : "false") << ",\"roundup_power2_divisions\":{";
  size_t k = 1; first = true; for (auto v : c.roundup_power2_divisions) { std::cout << (first ? "" : ",") << "\"" << k << "\":" << v; k *= 2; first = false; }
  auto st = a->getDeviceStats(0);
  std::cout << "}},\"stats\":{\"num_device_alloc\":" << st.num_device_alloc << ",\"num_device_free\":" << st.num_device_free << ",\"num_alloc_retries\":" << st.num_alloc_retries << ",\"num_ooms\":" << st.num_ooms << ",\"reserved_peak\":" << st.reserved_bytes[0].peak << ",\"allocated_peak\":" << st.allocated_bytes[0].peak << ",\"large_segment_size\":" << c10::CachingAllocator::AcceleratorAllocatorConfig::large_segment_size() << "}}\n";
  std::cout.flush(); _exit(0);
}
