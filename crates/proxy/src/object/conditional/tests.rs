use super::*;

fn answer(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let mut answer = Answer::none();
    answer.status = status;
    for (name, value) in headers {
        respond::set(&mut answer.headers, name, *value);
    }
    answer
}

#[test]
fn what_answers_to_writes_say() {
    let own = Timestamp::from_secs(7);
    let time = |secs| Timestamp::from_secs(secs).internal();
    let of = |method: Method, status, headers: &[(&'static str, &str)]| {
        outcome(&method, Some(&answer(status, headers)), own)
    };
    assert_eq!(of(Method::PUT, 201, &[]), Outcome::Done);
    let tombstone = time(7);
    let tombstone = [("x-backend-timestamp", &*tombstone)];
    assert_eq!(of(Method::DELETE, 404, &tombstone), Outcome::Done);
    assert_eq!(of(Method::DELETE, 404, &[]), Outcome::Refused);
    assert_eq!(of(Method::POST, 404, &[]), Outcome::Refused);
    assert_eq!(of(Method::PUT, 422, &[]), Outcome::Refused);
    assert_eq!(of(Method::PUT, 507, &[]), Outcome::Unknown);
    assert_eq!(outcome(&Method::PUT, None, own), Outcome::Unknown);
    let lost = ("x-backend-promise", "lost");
    let there = |secs| {
        let time = time(secs);
        let told = ("x-backend-timestamp", &*time);
        (
            of(Method::PUT, 409, &[told]),
            of(Method::PUT, 409, &[told, lost]),
        )
    };
    assert_eq!(there(7), (Outcome::Done, Outcome::Unknown), "it came twice");
    assert_eq!(there(8), (Outcome::Done, Outcome::Unknown));
    assert_eq!(there(6), (Outcome::Unknown, Outcome::Unknown));
}
