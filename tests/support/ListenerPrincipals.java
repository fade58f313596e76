import org.apache.kafka.common.security.auth.AuthenticationContext;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder;

/** Clients of the listener PLAINTEXT are anonymous. Those of every other listener are User:admin. */
public class ListenerPrincipals extends DefaultKafkaPrincipalBuilder {
    public ListenerPrincipals() {
        super(null, null);
    }

    @Override
    public KafkaPrincipal build(AuthenticationContext context) {
        return "PLAINTEXT".equals(context.listenerName())
            ? KafkaPrincipal.ANONYMOUS
            : new KafkaPrincipal(KafkaPrincipal.USER_TYPE, "admin");
    }
}
