// node client.mjs MASTER_HOST MASTER_PORT [USER_NAME USER_MAIL]
import { randomBytes } from "node:crypto";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { decodeMultiStream, encode } from "@msgpack/msgpack";

// Send one batch; return the connection and the Data of the answer that is waited for.
async function exchange(host, port, batch, object, name) {
  const socket = connect({ host, port });
  socket.setTimeout(5000, () => socket.destroy(new Error("no answer in time")));
  socket.write(encode(batch));
  const batches = decodeMultiStream(socket);
  try {
    for (let next = await batches.next(); !next.done; next = await batches.next()) {
      for (const answer of next.value) {
        if (answer.Command === "Error") throw new Error(answer.Data.Code);
        if (answer.Object === object && answer.Name === name) return { socket, data: answer.Data };
      }
    }
    throw new Error("closed without an answer");
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

const [host, port, userName = "anna", userMail = "anna@example.org"] = process.argv.slice(2);
const Client = randomBytes(16).toString("hex"); // the same in every retry of this ask
const Failed = [];

async function attempt() {
  const ask = { Object: "Master", Command: "Event", Name: "DoSendServer", Data: { Client, Failed } };
  const master = await exchange(host, port, [ask], "Master", "Server");
  master.socket.destroy();
  const { Result, Data } = master.data;
  // NoServer, Wait, Closed, Denied, and whatever comes later: come again when told to, else stop.
  if (Result !== "OK") return { result: Result, pause: Data?.RetryAfter };
  try {
    const backend = await exchange(Data.IP, Data.Port, [
      { Object: "Auth", Command: "Set", Name: "UserName", Data: userName },
      { Object: "Auth", Command: "Set", Name: "UserMail", Data: userMail },
    ], "Auth", "TaskObject");
    backend.socket.destroy(); // an application goes on here, on this connection
    return { result: "OK", line: ["OK", Data.IP, Data.Port, backend.data].join("\t") };
  } catch (error) {
    Failed.push({ IP: Data.IP, Port: Data.Port, Why: String(error.code ?? error.message).slice(0, 64) });
    throw error;
  }
}

let last = { result: "no answer" };
for (let i = 0; i < 20 && last.result !== "OK"; i++) {
  last = await attempt().catch((error) => ({ result: error.code ?? error.message, pause: 1 }));
  if (last.result === "OK" || last.pause == null) break;
  await sleep(last.pause * 1000);
}
console.log(last.line ?? last.result);
process.exitCode = last.result === "OK" ? 0 : 1;
