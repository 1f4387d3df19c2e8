//! Tokens are shown, revoked, and expire.

use super::*;

#[tokio::test]
async fn tokens_are_shown_and_end() {
    let store = Store::new();
    let alice = store.token("alice", "wonderland", "photos").await;
    let bob = store.token("bob", "builder", "films").await;
    let root = store.token("root", "toor", "films").await;
    let about = |method: &'static str, asker: &str, subject: &str| {
        let headers =
            [("x-auth-token", asker), ("x-subject-token", subject)].map(|(n, v)| (n, v.to_owned()));
        let store = &store;
        async move {
            let headers = headers.each_ref().map(|(n, v)| (*n, v.as_str()));
            let (response, body) = store.send(method, "/v3/auth/tokens", &headers, None).await;
            (response.status().as_u16(), body)
        }
    };
    let (status, shown) = about("GET", &alice, &alice).await;
    assert_eq!(
        (status, &shown["token"]["user"]["name"]),
        (200, &json!("alice"))
    );
    assert_eq!(about("HEAD", &root, &alice).await, (200, Value::Null));
    assert_eq!(about("GET", &bob, &alice).await.0, 403);
    assert_eq!(about("GET", &alice, "gAAAAno").await.0, 404);
    assert_eq!(about("GET", "gAAAAno", &alice).await.0, 401);
    assert_eq!(about("DELETE", &bob, &alice).await.0, 403);
    assert_eq!(store.may(&alice, "PUT", "/v1/AUTH_3f2a/c", "").await, 201);
    assert_eq!(about("DELETE", &alice, &alice).await.0, 204);
    assert_eq!(store.may(&alice, "PUT", "/v1/AUTH_3f2a/c", "").await, 401);
    assert_eq!(about("GET", &root, &alice).await.0, 404);

    // A restart neither ends tokens nor revives revoked ones; a new password ends its user's.
    let restarted = Store::again(&store._folder, &FILE.replace("toor", "changed"));
    assert_eq!(
        restarted.may(&bob, "PUT", "/v1/AUTH_films/c", "").await,
        201
    );
    assert_eq!(
        restarted.may(&alice, "PUT", "/v1/AUTH_3f2a/c", "").await,
        401
    );
    assert_eq!(
        restarted.may(&root, "PUT", "/v1/AUTH_films/c", "").await,
        401
    );
    let day = std::time::Duration::from_secs(86_400);
    restarted.environment.clock.advance(day);
    assert_eq!(
        restarted.may(&bob, "PUT", "/v1/AUTH_films/c", "").await,
        401,
        "expired"
    );
}

/// Requests an operation on one token, authenticated by another.
async fn about(store: &Store, method: &str, asker: &str, subject: &str) -> u16 {
    let headers = [("x-auth-token", asker), ("x-subject-token", subject)];
    let (response, _) = store.send(method, "/v3/auth/tokens", &headers, None).await;
    response.status().as_u16()
}

#[tokio::test]
async fn a_revoked_token_ends_in_every_spelling_with_those_made_with_it() {
    let store = Store::new();
    // Repeated until a token has padding: its length depends on its content.
    let mut films = String::new();
    for _ in 0..3 {
        let token = store.token("alice", "wonderland", "films").await;
        films = if token.ends_with('=') { token } else { films };
    }
    let padded = [films, store.token("alice", "wonderland", "photos").await];
    let padded = padded.iter().find(|token| token.ends_with('='));
    let token = padded.expect("a token with padding").as_str();
    let bare = token.trim_end_matches('=');
    let again = json!({ "auth": {
        "identity": { "methods": ["token"], "token": { "id": token } },
        "scope": { "project": { "name": "photos", "domain": { "id": "default" } } },
    }});
    let (status, child, _) = store.login(&again).await;
    assert_eq!(status, 201);
    // All are in the cache.
    for token in [token, bare, &child] {
        assert_eq!(store.get(token, "/v3/auth/projects").await.0, 200);
    }
    assert_eq!(about(&store, "DELETE", bare, bare).await, 204);
    for token in [token, bare, &child] {
        assert_eq!(
            store.get(token, "/v3/auth/projects").await.0,
            401,
            "{token}"
        );
        assert_eq!(store.may(token, "PUT", "/v1/AUTH_3f2a/c", "").await, 401);
    }
    assert_eq!(store.login(&again).await.0, 401);
}

#[tokio::test]
async fn a_revoked_token_ends_in_every_process_of_the_host() {
    let store = Store::new();
    let other = Store::again(&store._folder, FILE);
    let token = store.token("alice", "wonderland", "photos").await;
    assert_eq!(other.may(&token, "PUT", "/v1/AUTH_3f2a/c", "").await, 201);
    assert_eq!(about(&store, "DELETE", &token, &token).await, 204);
    other
        .environment
        .clock
        .advance(std::time::Duration::from_secs(1));
    assert_eq!(other.may(&token, "PUT", "/v1/AUTH_3f2a/c", "").await, 401);
}

#[tokio::test]
async fn services_see_tokens_and_end_none() {
    let store = Store::new();
    let alice = store.token("alice", "wonderland", "photos").await;
    let glance = store.token("glance", "glance", "services").await;
    assert_eq!(about(&store, "GET", &glance, &alice).await, 200);
    assert_eq!(about(&store, "DELETE", &glance, &alice).await, 403);
    let root = store.token("root", "toor", "films").await;
    assert_eq!(about(&store, "DELETE", &root, &alice).await, 204);
}
