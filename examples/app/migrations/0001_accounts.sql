create table accounts (
  id integer primary key,
  status text not null
);
