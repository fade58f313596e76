import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Asks Kafka's own StandardAuthorizer. Reads commands from its input, one a line, with tabs between fields:
 *
 *   new    super users, true or false (allow.everyone.if.no.acl.found)
 *   add    number, resource type, pattern type, name, principal, host, operation, permission
 *   remove number
 *   check  principal type, principal name, host, operation, resource type, name   -> ALLOWED or DENIED
 *   some   principal type, principal name, host, operation, resource type         -> ALLOWED or DENIED
 *   list   resource type, pattern type, name, principal, host, operation, permission (empty: any)
 *          -> the numbers of the ACLs that match, ascending
 *
 * Enumerated fields are Kafka's codes.
 */
public class StandardAuthorizerDecisions {
    record Client(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "test"; }
        public int correlationId() { return 0; }
    }

    static byte code(String field) { return Byte.parseByte(field); }

    static String orNull(String field) { return field.isEmpty() ? null : field; }

    static Client client(String[] f) throws Exception {
        return new Client(new KafkaPrincipal(f[1], f[2]), InetAddress.getByName(f[3]));
    }

    static StandardAcl acl(String[] f) {
        return new StandardAcl(ResourceType.fromCode(code(f[2])), f[4], PatternType.fromCode(code(f[3])), f[5],
            f[6], AclOperation.fromCode(code(f[7])), AclPermissionType.fromCode(code(f[8])));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        StandardAuthorizer authorizer = null;
        Map<AclBinding, Integer> numbers = Map.of();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] f = line.split("\t", -1);
            switch (f[0]) {
                case "new":
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of("super.users", f[1], "allow.everyone.if.no.acl.found", f[2],
                        "node.id", "1"));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.loadSnapshot(Map.of());
                    authorizer.completeInitialLoad();
                    numbers = new java.util.HashMap<>();
                    break;
                case "add":
                    authorizer.addAcl(new Uuid(0, Long.parseLong(f[1])), acl(f));
                    numbers.put(acl(f).toBinding(), Integer.parseInt(f[1]));
                    break;
                case "remove":
                    authorizer.removeAcl(new Uuid(0, Long.parseLong(f[1])));
                    break;
                case "check":
                    Action action = new Action(AclOperation.fromCode(code(f[4])), new ResourcePattern(
                        ResourceType.fromCode(code(f[5])), f[6], PatternType.LITERAL), 1, false, false);
                    out.println(authorizer.authorize(client(f), List.of(action)).get(0));
                    break;
                case "some":
                    out.println(authorizer.authorizeByResourceType(client(f), AclOperation.fromCode(code(f[4])),
                        ResourceType.fromCode(code(f[5]))));
                    break;
                case "list":
                    AclBindingFilter filter = new AclBindingFilter(
                        new ResourcePatternFilter(ResourceType.fromCode(code(f[1])), orNull(f[3]),
                            PatternType.fromCode(code(f[2]))),
                        new AccessControlEntryFilter(orNull(f[4]), orNull(f[5]),
                            AclOperation.fromCode(code(f[6])), AclPermissionType.fromCode(code(f[7]))));
                    List<Integer> found = new ArrayList<>();
                    for (AclBinding binding : authorizer.acls(filter)) {
                        found.add(numbers.get(binding));
                    }
                    Collections.sort(found);
                    out.println(found);
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
        }
        out.flush();
    }
}
