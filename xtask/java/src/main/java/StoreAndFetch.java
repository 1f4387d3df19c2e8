import java.util.Arrays;
import java.util.Random;
import org.javaswift.joss.client.factory.AccountConfig;
import org.javaswift.joss.client.factory.AccountFactory;
import org.javaswift.joss.client.factory.AuthenticationMethod;
import org.javaswift.joss.client.factory.AuthenticationMethodScope;
import org.javaswift.joss.model.Account;
import org.javaswift.joss.model.Container;
import org.javaswift.joss.model.StoredObject;

/** StoreAndFetch METHOD AUTH-URL USER PASSWORD PROJECT [DOMAIN]: joss, as an application uses it. */
public final class StoreAndFetch {
  public static void main(String[] args) {
    AccountConfig config = new AccountConfig();
    config.setAuthenticationMethod(AuthenticationMethod.valueOf(args[0]));
    config.setAuthUrl(args[1]);
    config.setUsername(args[2]);
    config.setPassword(args[3]);
    config.setTenantName(args[4]);
    if (args.length > 5) {
      config.setDomain(args[5]);
      config.setAuthenticationMethodScope(AuthenticationMethodScope.PROJECT_NAME);
    }
    Account account = new AccountFactory(config).createAccount();
    Container container = account.getContainer("from-java");
    container.create();
    byte[] sent = new byte[300_000];
    new Random(1).nextBytes(sent);
    StoredObject object = container.getObject("folder/ob\u00e9ct 1");
    object.uploadObject(sent);
    boolean listed = false;
    for (StoredObject one : container.list()) {
      listed |= one.getName().equals(object.getName());
    }
    byte[] got = object.downloadObject();
    if (!listed || !Arrays.equals(sent, got)) {
      throw new IllegalStateException("listed: " + listed + ", bytes: " + got.length);
    }
    object.delete();
    container.delete();
    System.out.println("stored, listed and fetched " + got.length + " bytes");
  }
}
