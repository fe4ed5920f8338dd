-- lua5.3 old_decoder.lua < LINES: decode each line of hex as decoders did before 2013, encode it again, print its hex.
local mp = require "MessagePack"

local name, unpackers
local i = 0
repeat
  i = i + 1
  name, unpackers = debug.getupvalue(mp.unpack_cursor, i)
until name == "unpackers"

-- bin and ext, fixext, str8
for _, span in ipairs {{0xC4, 0xC9}, {0xD4, 0xD9}} do
  for head = span[1], span[2] do
    unpackers[head] = function() error(("%02x is not known"):format(head)) end
  end
end

for line in io.lines() do
  local bytes = line:gsub("%x%x", function(digits) return string.char(tonumber(digits, 16)) end)
  print((mp.pack(mp.unpack(bytes)):gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)))
end
