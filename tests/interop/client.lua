-- lua5.3 client.lua MASTER_HOST MASTER_PORT [USER_NAME USER_MAIL]
local socket = require "socket"
local mp = require "MessagePack"

-- Send one batch; return the Data of the answer that is waited for and the connection, or nil and what came instead.
local function exchange(host, port, batch, object, name)
  local connection = assert(socket.tcp())
  connection:settimeout(5) -- for each step: connect, send, receive
  local fine, why = connection:connect(host, port)
  if fine then
    connection:send(mp.pack(batch))
    local batches = mp.unpacker(function() return (connection:receive(1)) end)
    local read, more, answers = pcall(batches)
    while read and more do
      for _, answer in ipairs(answers) do
        if answer.Command == "Error" then connection:close() return nil, answer.Data.Code end
        if answer.Object == object and answer.Name == name then return answer.Data, connection end
      end
      read, more, answers = pcall(batches)
    end
  end
  connection:close()
  return nil, why or "no answer"
end

local host, port, user_name, user_mail = arg[1], arg[2], arg[3] or "anna", arg[4] or "anna@example.org"

-- Ask where to go and go there; return the result, and after how many seconds to try again, nil = never.
local function attempt()
  local answer, master = exchange(host, port, {
    {Object = "Master", Command = "Event", Name = "DoSendServer"},
  }, "Master", "Server")
  if not answer then return master, 1 end
  master:close()
  local data = answer.Data or {}
  -- NoServer, Wait, Closed, Denied, and whatever comes later: come again when told to, else stop.
  if answer.Result ~= "OK" then return answer.Result, data.RetryAfter end
  local task, backend = exchange(data.IP, data.Port, {
    {Object = "Auth", Command = "Set", Name = "UserName", Data = user_name},
    {Object = "Auth", Command = "Set", Name = "UserMail", Data = user_mail},
  }, "Auth", "TaskObject")
  if not task then return backend, 1 end
  print("OK", data.IP, data.Port, task)
  backend:close() -- an application goes on here, on this connection
  os.exit(0)
end

local result, pause
for _ = 1, 20 do
  result, pause = attempt()
  if not pause then break end
  socket.sleep(pause)
end
print(result)
os.exit(1)
