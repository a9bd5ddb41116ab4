package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
)

// application marks the header of a database as ours: "Rndh".
const application = 0x526e6468

// migrations are the steps from an empty database to the schema of this binary. Step n
// is the n-th file in the order of their names; a step never changes once it was
// released. The number of the last one is kept in the database's header
// (user_version), where it can be read without touching anything.
//
//go:embed migrations/*.sql
var migrations embed.FS

func migrationFiles() []string {
	files, err := fs.Glob(migrations, "migrations/*.sql") // sorted
	if err != nil {
		panic(err) // of the pattern alone
	}
	return files
}

// schemaOf reads whose database this is: 0 for an empty one.
func schemaOf(ctx context.Context, db *sql.DB) (version int, err error) {
	var owner, objects int
	if err := db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&owner); err != nil {
		return 0, failure("read the database's header", err)
	}
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return 0, failure("read the database's schema version", err)
	}
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&objects); err != nil {
		return 0, failure("read the database's schema", err)
	}
	newest := len(migrationFiles())
	switch {
	case owner == 0 && version == 0 && objects == 0:
		return 0, nil
	case owner != application:
		return 0, ErrForeign
	case version > newest:
		return 0, fmt.Errorf("%w: its schema is %d, this binary knows %d", ErrNewer, version, newest)
	}
	return version, nil
}

// migrate brings the database from version to ours. Each step is one transaction, its
// number included, so a start that was interrupted goes on where it was.
func migrate(ctx context.Context, c *conn, version int) error {
	for i, file := range migrationFiles() {
		if i < version {
			continue
		}
		text, err := migrations.ReadFile(file)
		if err != nil {
			return err
		}
		steps := []string{
			"BEGIN IMMEDIATE", string(text),
			fmt.Sprintf("PRAGMA application_id = %d", application),
			fmt.Sprintf("PRAGMA user_version = %d", i+1),
			"COMMIT",
		}
		for _, step := range steps {
			if _, err := c.sql.ExecContext(ctx, step); err != nil {
				return failure("bring the database to schema "+file, err)
			}
		}
	}
	return nil
}
