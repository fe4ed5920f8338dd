-- lua5.3 backend.lua PORT
local socket = require "socket"
local mp = require "MessagePack"

local server = assert(socket.bind("127.0.0.1", tonumber(arg[1])))
server:settimeout(0)
local users, readers = {}, {} -- by connection: the user's name, and the coroutine that reads it
local watched = {server}

local function user_count(asking) -- the probe's own connection is no client
  local count = 0
  for connection, user in pairs(users) do
    if connection ~= asking and user.mail then count = count + 1 end
  end
  return count
end

local function answer(connection, message)
  local key = message.Object .. "." .. message.Command .. "." .. message.Name
  if key == "Auth.Set.UserName" then
    users[connection] = {name = message.Data}
  elseif key == "Auth.Set.UserMail" and users[connection] then
    users[connection].mail = message.Data
    return {Object = "Auth", Command = "Value", Name = "TaskObject", Data = "Task." .. users[connection].name}
  elseif key == "System.Get.UserCount" then
    return {Object = "System", Command = "Value", Name = "UserCount", Data = user_count(connection)}
  end -- whatever else comes may be ignored
end

-- The unpacker asks for more bytes by yielding to the loop below, wherever in a batch it stands.
local function read(connection)
  for _, batch in mp.unpacker(coroutine.yield) do
    local answers = {}
    for _, message in ipairs(batch) do answers[#answers + 1] = answer(connection, message) end
    if #answers > 0 then connection:send(mp.pack(answers)) end
  end
end

local function drop(connection)
  connection:close()
  users[connection], readers[connection] = nil, nil
  for i, other in ipairs(watched) do
    if other == connection then table.remove(watched, i) break end
  end
end

while true do
  for _, ready in ipairs(socket.select(watched)) do
    if ready == server then
      local connection = server:accept()
      if connection then
        connection:settimeout(0)
        watched[#watched + 1] = connection
        readers[connection] = coroutine.create(read)
        coroutine.resume(readers[connection], connection)
      end
    else
      local bytes, why, rest = ready:receive(4096)
      bytes = bytes or rest
      local ok = bytes == "" or coroutine.resume(readers[ready], bytes)
      if why == "closed" or not ok then drop(ready) end
    end
  end
end
