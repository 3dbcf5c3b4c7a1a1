use std::time::Duration;

use super::tenant::LimitState;
use super::*;

fn tenants(text: &str) -> Tenants {
    Tenants::new(&Config::from_toml(text).unwrap())
}

#[test]
fn requests_per_minute_are_a_bucket_for_each_tenant() {
    let tenants = tenants("[tenants.a]\nrequests_per_minute = 2");
    let (a, b, start) = (tenants.get("a"), tenants.get("b"), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    drop((a.admit(start).unwrap(), a.admit(start).unwrap()));
    let refused = a.admit(start).unwrap_err();
    assert_eq!(refused, Limited::Requests { limit: 2, retry_after: Duration::from_secs(30) });
    assert!(refused.to_string().contains("2 requests per minute reached; send the request again in 30s"));
    assert!(b.admit(start).is_ok());
    assert!(a.admit(after(29)).is_err());
    assert!(a.admit(after(30)).is_ok());
    let state = a.state(after(30));
    assert_eq!(state.requests.unwrap().remaining, 0);
    assert_eq!((state.tokens, b.state(start)), (None, LimitState::default()));
}

#[test]
fn tokens_are_charged_when_they_are_known() {
    let tenants = tenants("[tenants.a]\ntokens_per_minute = 600");
    let (a, start) = (tenants.get("a"), Instant::now());
    let _permit = a.admit(start).unwrap();
    a.charge_tokens(700, start);
    assert!(matches!(a.admit(start), Err(Limited::Tokens { limit: 600, .. })));
    let wait = a.admit(start).unwrap_err().retry_after();
    assert!(a.admit(start + wait).is_ok());
    assert_eq!(a.state(start + wait).tokens.unwrap().remaining, 1);
}

#[test]
fn permits_free_their_places() {
    let tenants = tenants("[limits]\nrequests = 3\n[tenants.a]\nconcurrent_requests = 2");
    let (a, b, now) = (tenants.get("a"), tenants.get("b"), Instant::now());
    let first = a.admit(now).unwrap();
    let _second = a.admit(now).unwrap();
    assert_eq!(a.admit(now).unwrap_err(), Limited::Concurrency { limit: 2 });
    let _third = b.admit(now).unwrap();
    assert_eq!(b.admit(now).unwrap_err(), Limited::Overloaded { limit: 3 });
    assert_eq!((tenants.running(), a.running()), (3, 2));
    drop(first);
    assert_eq!((tenants.running(), a.running()), (2, 1));
    assert!(b.admit(now).is_ok());
}

#[test]
fn refused_requests_use_nothing_up() {
    let tenants = tenants("[limits]\nrequests = 1\n[tenants.a]\nrequests_per_minute = 5");
    let (a, now) = (tenants.get("a"), Instant::now());
    let _permit = a.admit(now).unwrap();
    for _ in 0..10 {
        assert!(matches!(a.admit(now), Err(Limited::Overloaded { .. })));
    }
    assert_eq!(a.state(now).requests.unwrap().remaining, 4);
}

#[test]
fn a_reload_changes_limits_of_tenants_in_use() {
    let tenants = tenants("[tenants.a]\nrequests_per_minute = 2");
    let (a, now) = (tenants.get("a"), Instant::now());
    drop((a.admit(now).unwrap(), a.admit(now).unwrap()));
    let config = Config::from_toml("[tenants.a]\nrequests_per_minute = 3\nkv_share = 0.25").unwrap();
    tenants.reload(&config, now);
    assert!(a.admit(now).is_ok());
    assert!(a.admit(now).is_err());
    assert_eq!(tenants.get("a").kv_share(), Some(0.25));
    tenants.reload(&Config::default(), now);
    assert!(a.admit(now).is_ok());
}

#[test]
fn many_threads_never_exceed_the_limits() {
    let tenants = tenants("[limits]\nrequests = 4\n[tenants.a]\nconcurrent_requests = 3");
    let a = tenants.get("a");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let permit = a.admit(Instant::now());
                    assert!(a.running() <= 3);
                    drop(permit);
                }
            });
        }
    });
    assert_eq!((tenants.running(), a.running()), (0, 0));
}
