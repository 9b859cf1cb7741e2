#include "transport/hca_list.h"

#include <algorithm>
#include <charconv>

#include "core/error.h"

namespace rocenante {

HcaList::HcaList(const std::string& variable, std::string_view text) {
  const std::string_view whole = text;
  const auto malformed = [&] {
    throw Error(ErrorKind::config, variable + "=\"" + std::string(whole) +
                                       "\" is not valid: it must be like mlx5_0:1,mlx5_1 with, "
                                       "perhaps, = (exact names) or ^ (all but these) in front");
  };
  const auto take = [&](char c) {
    const bool found = text.starts_with(c);
    if (found) text.remove_prefix(1);
    return found;
  };
  excludes_ = take('^');
  exact_ = take('=');
  if (text.empty() && (excludes_ || exact_)) malformed();
  while (!text.empty()) {
    const size_t comma = text.find(',');
    std::string_view entry = text.substr(0, comma);
    text = comma == text.npos ? std::string_view{} : text.substr(comma + 1);
    const size_t colon = entry.find(':');
    int port = 0;
    if (colon != entry.npos) {
      const std::string_view digits = entry.substr(colon + 1);
      const char* end = digits.data() + digits.size();
      const auto [rest, error] = std::from_chars(digits.data(), end, port);
      if (error != std::errc() || rest != end || port < 1 || port > 255) malformed();
      entry = entry.substr(0, colon);
    }
    if (entry.empty()) malformed();
    entries_.push_back({std::string(entry), port});
  }
}

bool HcaList::matches(const Entry& entry, std::string_view device, int port) const {
  if (entry.port != 0 && entry.port != port) return false;
  return exact_ ? device == entry.name : device.starts_with(entry.name);
}

bool HcaList::allows(std::string_view device, int port) const {
  if (entries_.empty()) return true;
  const bool listed = std::any_of(entries_.begin(), entries_.end(),
                                  [&](const Entry& e) { return matches(e, device, port); });
  return listed != excludes_;
}

std::vector<std::string> HcaList::unmatched(
    const std::vector<std::pair<std::string, int>>& present) const {
  std::vector<std::string> missing;
  if (excludes_) return missing;
  for (const Entry& e : entries_)
    if (std::none_of(present.begin(), present.end(),
                     [&](const auto& p) { return matches(e, p.first, p.second); }))
      missing.push_back(e.text());
  return missing;
}

}  // namespace rocenante
