// java -cp msgpack-core.jar Client.java MASTER_HOST MASTER_PORT [USER_NAME USER_MAIL]
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.Socket;
import org.msgpack.core.MessagePack;
import org.msgpack.core.MessageUnpacker;
import org.msgpack.value.Value;
import org.msgpack.value.ValueFactory;

public class Client {
    static final double DONE = 0;
    static final double NEVER = -1;

    static Value text(String value) {
        return ValueFactory.newString(value);
    }

    static Value message(String object, String command, String name, Value data) {
        var message = ValueFactory.newMapBuilder()
            .put(text("Object"), text(object)).put(text("Command"), text(command)).put(text("Name"), text(name));
        return (data == null ? message : message.put(text("Data"), data)).build();
    }

    static Value get(Value map, String key) {
        return map.asMapValue().map().getOrDefault(text(key), ValueFactory.newNil());
    }

    /** Send one batch; return the Data of the answer that is waited for. */
    static Value exchange(Socket socket, String host, int port, Value batch, String object, String name)
            throws IOException {
        socket.connect(new InetSocketAddress(host, port), 5000);
        socket.setSoTimeout(5000);
        // Old decoders know no str8.
        var packer = new MessagePack.PackerConfig().withStr8FormatSupport(false).newBufferPacker();
        packer.packValue(batch).flush();
        socket.getOutputStream().write(packer.toByteArray());
        MessageUnpacker unpacker = MessagePack.newDefaultUnpacker(socket.getInputStream());
        while (unpacker.hasNext()) {
            for (Value answer : unpacker.unpackValue().asArrayValue()) {
                if (get(answer, "Command").equals(text("Error"))) {
                    throw new IOException(get(get(answer, "Data"), "Code").toString());
                }
                if (get(answer, "Object").equals(text(object)) && get(answer, "Name").equals(text(name))) {
                    return get(answer, "Data");
                }
            }
        }
        throw new IOException("no answer");
    }

    /** Ask where to go and go there; return after how many seconds to try again, or DONE, or NEVER. */
    static double attempt(String host, int port, String userName, String userMail) throws IOException {
        Value answer;
        try (var master = new Socket()) {
            var ask = ValueFactory.newArray(message("Master", "Event", "DoSendServer", null));
            answer = exchange(master, host, port, ask, "Master", "Server");
        }
        String result = get(answer, "Result").asStringValue().asString();
        Value data = get(answer, "Data");
        if (!result.equals("OK")) {
            // NoServer, Wait, Closed, Denied, and whatever comes later: come again when told to, else stop.
            System.out.println(result);
            Value pause = data.isMapValue() ? get(data, "RetryAfter") : data;
            return pause.isNumberValue() ? pause.asNumberValue().toDouble() : NEVER;
        }
        String ip = get(data, "IP").asStringValue().asString();
        int ipPort = get(data, "Port").asIntegerValue().asInt();
        try (var backend = new Socket()) {
            var user = ValueFactory.newArray(
                message("Auth", "Set", "UserName", text(userName)),
                message("Auth", "Set", "UserMail", text(userMail)));
            Value task = exchange(backend, ip, ipPort, user, "Auth", "TaskObject");
            System.out.println(String.join("\t", "OK", ip, "" + ipPort, task.asStringValue().asString()));
            return DONE; // an application goes on here, on this connection
        }
    }

    public static void main(String[] args) throws InterruptedException {
        String userName = args.length > 3 ? args[2] : "anna";
        String userMail = args.length > 3 ? args[3] : "anna@example.org";
        double pause = 1;
        for (int i = 0; i < 20 && pause > 0; i++) {
            try {
                pause = attempt(args[0], Integer.parseInt(args[1]), userName, userMail);
            } catch (IOException failure) {
                System.out.println(failure.getMessage());
                pause = 1;
            }
            Thread.sleep((long) (Math.max(pause, 0) * 1000));
        }
        System.exit(pause == DONE ? 0 : 1);
    }
}
