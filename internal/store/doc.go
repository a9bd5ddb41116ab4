// Package store keeps what must survive the daemon: sessions, recorded model calls
// and responses, in one SQLite database.
//
// A call is recorded in three steps, each one durable (synced to the disk) when its
// method has returned without an error:
//
//	err = st.Begin(ctx, store.Call{Session: key, ID: id, API: "chat", Policy: store.Train,
//		Start: time.Now(), Request: store.Pack(body)}) // the intent, while the request is on its way
//	err = st.Commit(ctx, key, id, store.Result{Outcome: store.Complete, Status: 200,
//		Raw: store.Pack(answer), End: time.Now()}) // before the client may believe that the turn is complete
//	err = st.Deliver(ctx, key, id, store.Full, n) // what became of it
//
// Every write may be repeated: one that is stored already is a success, so a caller
// that does not know whether its write went through sends it again. Its errors are:
//
//   - ErrSealed, ErrConflict, ErrNotFound: it was refused; nothing of it is stored;
//   - ErrUnknown: it may or may not be stored, as when the caller's context ended in the
//     middle; read it by its key, or repeat it;
//   - anything else: nothing of it is stored. ErrFull says that the disk is full.
//
// A store that failed goes on as soon as it can: there is nothing to reset.
//
// Calls, Sessions and the other reads never hold up a write, nor a write them.
//
// Writes of many callers share one sync of the disk (C6, "group commit"): what comes
// while a transaction is being synced goes into the next one together. Intents and
// deliveries, for which no client waits, linger for one that cannot (Config.Linger).
//
// The properties are those of the recorder's specification (C) and of the
// trajectories' (J).
package store
